"""Values: what each value predicts (figures 4 to 6, table 2).

Needs: values.h5 and the head; triggers.h5 and the train split.
Makes: results/<run>/values/: projections and a table of memories by group of layers, and the tables of the figures.
"""


rule values_project:
    input:
        model="results/{run}/model",
        values_file="results/{run}/values.h5",
        triggers="results/{run}/triggers.h5",
    output:
        projections="results/{run}/values/projections/{group}.h5",
        by_memory="results/{run}/values/by_memory/{group}.parquet",
    log:
        "results/{run}/logs/values_project/{group}.log",
    benchmark:
        "results/{run}/benchmarks/values_project/{group}.tsv"
    priority: 162
    conda:
        "../../envs/ffkv.yaml"
    threads: 4
    resources:
        gpu=gpus(),
    params:
        options=runs.options("values_project"),
        code=code("values_project"),
    message:
        "Project the values of layer group {wildcards.group} of {wildcards.run} on the vocabulary. Progress is in {log}."
    shell:
        """
        ffkv values project {params.options} \
            --model {input.model:q} \
            --values {input.values_file:q} \
            --triggers {input.triggers:q} \
            --layer-group {wildcards.group} \
            --threads {threads} \
            --output-projections {output.projections:q} \
            --output-by-memory {output.by_memory:q} \
            >{log:q} 2>&1
        """


rule values_summarize:
    input:
        by_memory=runs.every("results/{run}/values/by_memory/{group}.parquet"),
        model="results/{run}/model",
        triggers="results/{run}/triggers.h5",
        train="results/{run}/corpus/train.h5",
    output:
        tables("values_summarize"),
    log:
        "results/{run}/logs/values_summarize.log",
    benchmark:
        "results/{run}/benchmarks/values_summarize.tsv"
    priority: 12
    conda:
        "../../envs/ffkv.yaml"
    params:
        folder=subpath(output[0], parent=True),
        by_memory=repeated("by_memory"),
        options=runs.options("values_summarize"),
        code=code("values_summarize"),
    message:
        "Summarize the values of {wildcards.run} for figures 4 to 6 and table 2."
    shell:
        """
        ffkv values summarize {params.options} {params.by_memory:q} \
            --model {input.model:q} \
            --triggers {input.triggers:q} \
            --train {input.train:q} \
            --output {params.folder:q} \
            >{log:q} 2>&1
        """
