"""Values: what each value predicts (figures 4 to 6, table 2).

Needs: memories.h5 and the head; triggers.h5 and the train split.
Makes: results/<run>/values/: projections and a table of memories by group of layers, and the summaries of the figures.
"""


rule measure_values:
    input:
        model="results/{run}/model",
        memories="results/{run}/memories.h5",
        triggers="results/{run}/triggers.h5",
        code=code("values"),
    output:
        projections="results/{run}/values/projections/{group}.h5",
        memories="results/{run}/values/memories/{group}.parquet",
    log:
        "results/{run}/logs/measure_values/{group}.log",
    benchmark:
        "results/{run}/benchmarks/measure_values/{group}.tsv"
    conda:
        "../../envs/ffkv.yaml"
    threads: 4
    params:
        projection=setting("values/projection"),
        top_tokens=setting("values/top_tokens"),
        device=setting("model/device"),
        groups=setting("layer_groups"),
    shell:
        """
        ffkv values measure \
            --model {input.model:q} \
            --memories {input.memories:q} \
            --triggers {input.triggers:q} \
            --projection {params.projection} \
            --top-tokens {params.top_tokens} \
            --device {params.device} \
            --layer-group {wildcards.group} \
            --layer-groups {params.groups} \
            --threads {threads} \
            --projections {output.projections:q} \
            --output {output.memories:q} \
            >{log:q} 2>&1
        """


rule values:
    input:
        memories=parts(
            "results/{run}/values/memories/{group}.parquet", "group", "layer_groups"
        ),
        model="results/{run}/model",
        triggers="results/{run}/triggers.h5",
        corpus="results/{run}/corpus/train.h5",
        code=code("values", "intervals.py"),
    output:
        agreement="results/{run}/values/agreement.csv",
        rank="results/{run}/values/rank.csv",
        probability="results/{run}/values/probability.csv",
        predictive="results/{run}/values/predictive.csv",
        predictive_layers="results/{run}/values/predictive_layers.csv",
    log:
        "results/{run}/logs/values.log",
    benchmark:
        "results/{run}/benchmarks/values.tsv"
    conda:
        "../../envs/ffkv.yaml"
    threads: 1
    params:
        folder=subpath(output.agreement, parent=True),
        predictive=setting("values/predictive"),
        bins=setting("values/bins"),
        seed=setting("seed"),
    shell:
        """
        ffkv values summarize \
            {input.memories:q} \
            --model {input.model:q} \
            --triggers {input.triggers:q} \
            --corpus {input.corpus:q} \
            --predictive {params.predictive} \
            --bins {params.bins} \
            --seed {params.seed} \
            --output {params.folder:q} \
            >{log:q} 2>&1
        """
