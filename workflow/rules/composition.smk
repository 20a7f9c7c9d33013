"""Composition: how the memories of a layer compose (figures 7 and 8).

Needs: prefixes.h5, memories.h5, the head, the validation split.
Makes: results/<run>/composition/: a table of prefixes by group of layers, and the summaries of the figures.
"""


rule measure_composition:
    input:
        model="results/{run}/model",
        prefixes="results/{run}/prefixes.h5",
        memories="results/{run}/memories.h5",
        corpus="results/{run}/corpus/validation.h5",
        code=code("composition"),
    output:
        prefixes="results/{run}/composition/prefixes/{group}.parquet",
    log:
        "results/{run}/logs/measure_composition/{group}.log",
    benchmark:
        "results/{run}/benchmarks/measure_composition/{group}.tsv"
    conda:
        "../../envs/ffkv.yaml"
    threads: 4
    params:
        projection=setting("values/projection"),
        mass=setting("composition/mass"),
        device=setting("model/device"),
        groups=setting("layer_groups"),
    shell:
        """
        ffkv composition measure \
            --model {input.model:q} \
            --prefixes {input.prefixes:q} \
            --memories {input.memories:q} \
            --corpus {input.corpus:q} \
            --projection {params.projection} \
            --mass {params.mass} \
            --device {params.device} \
            --layer-group {wildcards.group} \
            --layer-groups {params.groups} \
            --threads {threads} \
            --output {output.prefixes:q} \
            >{log:q} 2>&1
        """


rule composition:
    input:
        prefixes=parts(
            "results/{run}/composition/prefixes/{group}.parquet",
            "group",
            "layer_groups",
        ),
        model="results/{run}/model",
        code=code("composition", "intervals.py"),
    output:
        active="results/{run}/composition/active.csv",
        agreement="results/{run}/composition/agreement.csv",
        cases="results/{run}/composition/cases.csv",
        effective="results/{run}/composition/effective.csv",
    log:
        "results/{run}/logs/composition.log",
    benchmark:
        "results/{run}/benchmarks/composition.tsv"
    conda:
        "../../envs/ffkv.yaml"
    threads: 1
    params:
        folder=subpath(output.active, parent=True),
        short_prefix=setting("composition/short_prefix"),
    shell:
        """
        ffkv composition summarize \
            {input.prefixes:q} \
            --model {input.model:q} \
            --short-prefix {params.short_prefix} \
            --output {params.folder:q} \
            >{log:q} 2>&1
        """
