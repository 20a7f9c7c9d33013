"""Composition: how the memories of a layer compose (figures 7 and 8).

Needs: sampled_prefixes.h5, the projections of the values, the head, the validation split.
Makes: results/<run>/composition/: a table of prefixes by group of layers, and the tables of the figures.
"""


rule composition_measure:
    input:
        model="results/{run}/model",
        prefixes="results/{run}/sampled_prefixes.h5",
        projections="results/{run}/values/projections/{group}.h5",
        validation="results/{run}/corpus/validation.h5",
    output:
        by_prefix="results/{run}/composition/by_prefix/{group}.parquet",
    log:
        "results/{run}/logs/composition_measure/{group}.log",
    benchmark:
        "results/{run}/benchmarks/composition_measure/{group}.tsv"
    priority: 27
    conda:
        "../../envs/ffkv.yaml"
    threads: 4
    resources:
        gpu=gpus(),
    params:
        options=runs.options("composition_measure"),
        code=code("composition_measure"),
    message:
        "Measure how the memories of layer group {wildcards.group} of {wildcards.run} compose. Progress is in {log}."
    shell:
        """
        ffkv composition measure {params.options} \
            --model {input.model:q} \
            --prefixes {input.prefixes:q} \
            --projections {input.projections:q} \
            --validation {input.validation:q} \
            --layer-group {wildcards.group} \
            --threads {threads} \
            --output {output.by_prefix:q} \
            >{log:q} 2>&1
        """


rule composition_summarize:
    input:
        by_prefix=runs.every("results/{run}/composition/by_prefix/{group}.parquet"),
        model="results/{run}/model",
    output:
        tables("composition_summarize"),
    log:
        "results/{run}/logs/composition_summarize.log",
    benchmark:
        "results/{run}/benchmarks/composition_summarize.tsv"
    priority: 12
    conda:
        "../../envs/ffkv.yaml"
    params:
        folder=subpath(output[0], parent=True),
        by_prefix=repeated("by_prefix"),
        options=runs.options("composition_summarize"),
        code=code("composition_summarize"),
    message:
        "Summarize the composition of memories in {wildcards.run} for figures 7 and 8."
    shell:
        """
        ffkv composition summarize {params.options} {params.by_prefix:q} \
            --model {input.model:q} \
            --output {params.folder:q} \
            >{log:q} 2>&1
        """
