"""Concepts: which labelled concepts memories separate, beside coordinates of the residual and random directions.

Needs: the model, the train split, the trigger examples, files of labels or rules.
Makes: results/<run>/concepts/: tables by concept, and the tables of the report's section. Runs without `concepts` do not use them.
"""


rule concepts_measure:
    input:
        runs.files("concepts"),
        model="results/{run}/model",
        train="results/{run}/corpus/train.h5",
        triggers="results/{run}/triggers.h5",
    output:
        by_task="results/{run}/concepts/by_task/{concept}.parquet",
        by_layer="results/{run}/concepts/by_layer/{concept}.parquet",
        best="results/{run}/concepts/best/{concept}.parquet",
        memories="results/{run}/concepts/memories/{concept}.parquet",
    log:
        "results/{run}/logs/concepts_measure/{concept}.log",
    benchmark:
        "results/{run}/benchmarks/concepts_measure/{concept}.tsv"
    priority: 60
    conda:
        "../../envs/ffkv.yaml"
    threads: 4
    resources:
        gpu=gpus(whole_model=True),
    params:
        options=runs.options("concepts_measure"),
        memory=runs.memory_limits(),
        content=runs.content("concepts"),
        code=code("concepts_measure"),
    message:
        "Measure which memories of {wildcards.run} separate the labels of {wildcards.concept}. Progress is in {log}."
    shell:
        """
        ffkv concepts measure {params.options} {params.memory} \
            --name {wildcards.concept} \
            --model {input.model:q} \
            --train {input.train:q} \
            --triggers {input.triggers:q} \
            --threads {threads} \
            --output-by-task {output.by_task:q} \
            --output-by-layer {output.by_layer:q} \
            --output-best {output.best:q} \
            --output-memories {output.memories:q} \
            >{log:q} 2>&1
        """


rule concepts_summarize:
    input:
        model="results/{run}/model",
        by_task=runs.every("results/{run}/concepts/by_task/{concept}.parquet"),
        by_layer=runs.every("results/{run}/concepts/by_layer/{concept}.parquet"),
        best=runs.every("results/{run}/concepts/best/{concept}.parquet"),
        memories=runs.every("results/{run}/concepts/memories/{concept}.parquet"),
    output:
        tables("concepts_summarize"),
    log:
        "results/{run}/logs/concepts_summarize.log",
    benchmark:
        "results/{run}/benchmarks/concepts_summarize.tsv"
    priority: 12
    conda:
        "../../envs/ffkv.yaml"
    params:
        folder=subpath(output[0], parent=True),
        by_task=repeated("by_task"),
        by_layer=repeated("by_layer"),
        best=repeated("best"),
        memories=repeated("memories"),
        options=runs.options("concepts_summarize"),
        code=code("concepts_summarize"),
    message:
        "Summarize the concepts of {wildcards.run} for the report."
    shell:
        """
        ffkv concepts summarize {params.options} \
            {params.by_task:q} {params.by_layer:q} {params.best:q} {params.memories:q} \
            --model {input.model:q} \
            --output {params.folder:q} \
            >{log:q} 2>&1
        """
