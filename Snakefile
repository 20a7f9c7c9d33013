"""The feed-forward layers of language models as key-value memories (Geva et al., EMNLP 2021).

snakemake                               the runs of config.yaml
snakemake --configfile mine.yaml        the runs of another settings file
snakemake -n                            show what would be done
"""

from ffkv.workflow import SNAKEFILE, check_settings_files

check_settings_files(workflow.config_settings.configfiles or ["config.yaml"])


# A settings file on the command line replaces config.yaml. The runs of both are not mixed.
if not workflow.config_settings.configfiles:

    configfile: "config.yaml"


module ffkv:
    snakefile:
        SNAKEFILE
    config:
        config


use rule * from ffkv


onstart:
    ffkv.onstart()


onsuccess:
    ffkv.onsuccess()


onerror:
    ffkv.onerror()
