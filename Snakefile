"""ffkv: the feed-forward layers of causal language models as key-value memories (Geva et al., EMNLP 2021).

snakemake                                     the runs of config.yaml
snakemake --configfile configs/gpt2.yaml      the runs of another file
snakemake -n                                  what would be done
"""

from snakemake.utils import min_version

min_version("9.19")


# A file given by --configfile stands for itself: its runs are not added to those of the default one.
if not workflow.config_settings.configfiles:

    configfile: "config.yaml"


include: "workflow/rules/common.smk"
include: "workflow/rules/embedded.smk"
include: "workflow/rules/model.smk"
include: "workflow/rules/corpus.smk"
include: "workflow/rules/activations.smk"
include: "workflow/rules/keys.smk"
include: "workflow/rules/values.smk"
include: "workflow/rules/composition.smk"
include: "workflow/rules/refinement.smk"
include: "workflow/rules/report.smk"


report: "workflow/report/workflow.rst"


# A line into a file is not worth a job on a cluster.
localrules:
    all,
    write_settings,


onstart:
    check_places()
    note_owner(workflow.local_exec)


onerror:
    say_what_is_full()


rule all:
    default_target: True
    input:
        collect("reports/{run}/index.html", run=SETTINGS),
