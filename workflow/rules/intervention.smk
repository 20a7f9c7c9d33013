"""Interventions: what changes when memory coefficients are changed while the model runs.

Needs: the model, triggers.h5, the projections of the values, sampled_prefixes.h5, both splits.
Makes: results/<run>/intervention/: tables by prefix, by memory and of kept memories by group of layers, and the tables of the
report's section. Runs with `intervention.memories: 0` do not use them.
"""


rule intervention_measure:
    input:
        model="results/{run}/model",
        triggers="results/{run}/triggers.h5",
        projections="results/{run}/values/projections/{group}.h5",
        prefixes="results/{run}/sampled_prefixes.h5",
        train="results/{run}/corpus/train.h5",
        validation="results/{run}/corpus/validation.h5",
    output:
        by_prefix="results/{run}/intervention/by_prefix/{group}.parquet",
        by_memory="results/{run}/intervention/by_memory/{group}.parquet",
        kept="results/{run}/intervention/kept/{group}.parquet",
    log:
        "results/{run}/logs/intervention_measure/{group}.log",
    benchmark:
        "results/{run}/benchmarks/intervention_measure/{group}.tsv"
    priority: 123
    conda:
        "../../envs/ffkv.yaml"
    threads: 4
    resources:
        gpu=gpus(whole_model=True),
    params:
        options=runs.options("intervention_measure"),
        memory=runs.memory_limits(),
        code=code("intervention_measure"),
    message:
        "Change memories of layer group {wildcards.group} of {wildcards.run} while the model runs. Progress is in {log}."
    shell:
        """
        ffkv intervention measure {params.options} {params.memory} \
            --model {input.model:q} \
            --triggers {input.triggers:q} \
            --projections {input.projections:q} \
            --prefixes {input.prefixes:q} \
            --train {input.train:q} \
            --validation {input.validation:q} \
            --layer-group {wildcards.group} \
            --threads {threads} \
            --output-by-prefix {output.by_prefix:q} \
            --output-by-memory {output.by_memory:q} \
            --output-kept {output.kept:q} \
            >{log:q} 2>&1
        """


rule intervention_summarize:
    input:
        model="results/{run}/model",
        by_prefix=runs.every("results/{run}/intervention/by_prefix/{group}.parquet"),
        by_memory=runs.every("results/{run}/intervention/by_memory/{group}.parquet"),
        kept=runs.every("results/{run}/intervention/kept/{group}.parquet"),
        projections=runs.every("results/{run}/values/projections/{group}.h5"),
    output:
        tables("intervention_summarize"),
    log:
        "results/{run}/logs/intervention_summarize.log",
    benchmark:
        "results/{run}/benchmarks/intervention_summarize.tsv"
    priority: 12
    conda:
        "../../envs/ffkv.yaml"
    params:
        folder=subpath(output[0], parent=True),
        by_prefix=repeated("by_prefix"),
        by_memory=repeated("by_memory"),
        kept=repeated("kept"),
        projections=repeated("projections"),
        options=runs.options("intervention_summarize"),
        code=code("intervention_summarize"),
    message:
        "Summarize the interventions in {wildcards.run} for the report."
    shell:
        """
        ffkv intervention summarize {params.options} \
            {params.by_prefix:q} {params.by_memory:q} {params.kept:q} {params.projections:q} \
            --model {input.model:q} \
            --output {params.folder:q} \
            >{log:q} 2>&1
        """
