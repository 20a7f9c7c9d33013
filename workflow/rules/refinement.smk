"""Refinement: how predictions are refined from layer to layer (figures 9 to 11).

Needs: sampled_prefixes.h5, the head, the validation split.
Makes: results/<run>/refinement/: a table of prefixes by group of layers, and the tables of the figures.
"""


rule refinement_measure:
    input:
        model="results/{run}/model",
        prefixes="results/{run}/sampled_prefixes.h5",
    output:
        by_prefix="results/{run}/refinement/by_prefix/{group}.parquet",
    log:
        "results/{run}/logs/refinement_measure/{group}.log",
    benchmark:
        "results/{run}/benchmarks/refinement_measure/{group}.tsv"
    priority: 54
    conda:
        "../../envs/ffkv.yaml"
    threads: 4
    resources:
        gpu=gpus(),
    params:
        options=runs.options("refinement_measure"),
        code=code("refinement_measure"),
    message:
        "Measure how the layers of group {wildcards.group} of {wildcards.run} refine predictions. Progress is in {log}."
    shell:
        """
        ffkv refinement measure {params.options} \
            --model {input.model:q} \
            --prefixes {input.prefixes:q} \
            --layer-group {wildcards.group} \
            --threads {threads} \
            --output {output.by_prefix:q} \
            >{log:q} 2>&1
        """


rule refinement_summarize:
    input:
        by_prefix=runs.every("results/{run}/refinement/by_prefix/{group}.parquet"),
        model="results/{run}/model",
        prefixes="results/{run}/sampled_prefixes.h5",
        validation="results/{run}/corpus/validation.h5",
    output:
        tables("refinement_summarize"),
    log:
        "results/{run}/logs/refinement_summarize.log",
    benchmark:
        "results/{run}/benchmarks/refinement_summarize.tsv"
    priority: 12
    conda:
        "../../envs/ffkv.yaml"
    params:
        folder=subpath(output[0], parent=True),
        by_prefix=repeated("by_prefix"),
        options=runs.options("refinement_summarize"),
        code=code("refinement_summarize"),
    message:
        "Summarize the refinement of predictions in {wildcards.run} for figures 9 to 11."
    shell:
        """
        ffkv refinement summarize {params.options} {params.by_prefix:q} \
            --model {input.model:q} \
            --prefixes {input.prefixes:q} \
            --validation {input.validation:q} \
            --output {params.folder:q} \
            >{log:q} 2>&1
        """
