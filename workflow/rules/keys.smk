"""Keys: what keys detect (figures 2 and 3).

Needs: triggers.h5, the train split; token removal also the model.
Makes: results/<run>/keys/: tables of patterns, prefixes and removals by group of layers, and the tables of the figures;
if the weights may be of low precision, what that does to trigger examples.
"""


rule keys_patterns:
    input:
        triggers="results/{run}/triggers.h5",
        train="results/{run}/corpus/train.h5",
    output:
        patterns="results/{run}/keys/patterns/{group}.parquet",
        by_prefix="results/{run}/keys/by_prefix/{group}.parquet",
    log:
        "results/{run}/logs/keys_patterns/{group}.log",
    benchmark:
        "results/{run}/benchmarks/keys_patterns/{group}.tsv"
    priority: 23
    conda:
        "../../envs/ffkv.yaml"
    threads: 1
    params:
        options=runs.options("keys_patterns"),
        code=code("keys_patterns"),
    message:
        "Find patterns in the trigger examples of layer group {wildcards.group} of {wildcards.run}. Progress is in {log}."
    shell:
        """
        ffkv keys patterns {params.options} \
            --triggers {input.triggers:q} \
            --train {input.train:q} \
            --layer-group {wildcards.group} \
            --threads {threads} \
            --output-patterns {output.patterns:q} \
            --output-by-prefix {output.by_prefix:q} \
            >{log:q} 2>&1
        """


rule keys_removal:
    input:
        model="results/{run}/model",
        triggers="results/{run}/triggers.h5",
        train="results/{run}/corpus/train.h5",
    output:
        removal="results/{run}/keys/removal/{group}.parquet",
    log:
        "results/{run}/logs/keys_removal/{group}.log",
    benchmark:
        "results/{run}/benchmarks/keys_removal/{group}.tsv"
    priority: 87
    conda:
        "../../envs/ffkv.yaml"
    threads: 4
    resources:
        gpu=gpus(whole_model=True),
    params:
        options=runs.options("keys_removal"),
        memory=runs.memory_limits(),
        code=code("keys_removal"),
    message:
        "Remove tokens from the trigger examples of layer group {wildcards.group} of {wildcards.run}. Progress is in {log}."
    shell:
        """
        ffkv keys removal {params.options} {params.memory} \
            --model {input.model:q} \
            --triggers {input.triggers:q} \
            --train {input.train:q} \
            --layer-group {wildcards.group} \
            --threads {threads} \
            --output {output.removal:q} \
            >{log:q} 2>&1
        """


rule keys_precision:
    input:
        model="results/{run}/model",
        triggers="results/{run}/triggers.h5",
        train="results/{run}/corpus/train.h5",
    output:
        precision="results/{run}/keys/precision.csv",
    log:
        "results/{run}/logs/keys_precision.log",
    benchmark:
        "results/{run}/benchmarks/keys_precision.tsv"
    priority: 50
    conda:
        "../../envs/ffkv.yaml"
    threads: 4
    resources:
        gpu=gpus(whole_model=True),
    params:
        folder=subpath(output.precision, parent=True),
        options=runs.options("keys_precision"),
        memory=runs.memory_limits(),
        code=code("keys_precision"),
    message:
        "Measure how the low precision of {wildcards.run} changes its trigger examples. Progress is in {log}."
    shell:
        """
        ffkv keys precision {params.options} {params.memory} \
            --model {input.model:q} \
            --triggers {input.triggers:q} \
            --train {input.train:q} \
            --threads {threads} \
            --output {params.folder:q} \
            >{log:q} 2>&1
        """


rule keys_summarize:
    input:
        triggers="results/{run}/triggers.h5",
        patterns=runs.every("results/{run}/keys/patterns/{group}.parquet"),
        by_prefix=runs.every("results/{run}/keys/by_prefix/{group}.parquet"),
        removal=runs.every("results/{run}/keys/removal/{group}.parquet"),
    output:
        tables("keys_summarize"),
    log:
        "results/{run}/logs/keys_summarize.log",
    benchmark:
        "results/{run}/benchmarks/keys_summarize.tsv"
    priority: 12
    conda:
        "../../envs/ffkv.yaml"
    params:
        folder=subpath(output[0], parent=True),
        patterns=repeated("patterns"),
        by_prefix=repeated("by_prefix"),
        removal=repeated("removal"),
        options=runs.options("keys_summarize"),
        code=code("keys_summarize"),
    message:
        "Summarize the keys of {wildcards.run} for figures 2 and 3."
    shell:
        """
        ffkv keys summarize {params.options} \
            --triggers {input.triggers:q} \
            {params.patterns:q} \
            {params.by_prefix:q} \
            {params.removal:q} \
            --output {params.folder:q} \
            >{log:q} 2>&1
        """
