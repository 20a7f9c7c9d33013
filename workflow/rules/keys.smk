"""Keys: what keys detect (figures 2 and 3).

Needs: triggers.h5, the train split; token removal the model, too.
Makes: results/<run>/keys/: tables of patterns, prefixes and removals by group of layers, and the summaries of the figures;
where the weights' type may be a low one, what that does to triggers.
"""


rule key_patterns:
    input:
        triggers="results/{run}/triggers.h5",
        corpus="results/{run}/corpus/train.h5",
        code=code("keys"),
    output:
        patterns="results/{run}/keys/patterns/{group}.parquet",
        prefixes="results/{run}/keys/prefixes/{group}.parquet",
    log:
        "results/{run}/logs/key_patterns/{group}.log",
    benchmark:
        "results/{run}/benchmarks/key_patterns/{group}.tsv"
    conda:
        "../../envs/ffkv.yaml"
    threads: 1
    params:
        per_layer=setting("keys/per_layer"),
        pattern_triggers=setting("keys/pattern_triggers"),
        minimum_prefixes=setting("keys/minimum_prefixes"),
        rate=setting("keys/false_discovery_rate"),
        background=setting("keys/background_prefixes"),
        seed=setting("seed"),
        groups=setting("layer_groups"),
    shell:
        """
        ffkv keys patterns \
            --triggers {input.triggers:q} \
            --corpus {input.corpus:q} \
            --per-layer {params.per_layer} \
            --pattern-triggers {params.pattern_triggers} \
            --minimum-prefixes {params.minimum_prefixes} \
            --false-discovery-rate {params.rate} \
            --background-prefixes {params.background} \
            --seed {params.seed} \
            --layer-group {wildcards.group} \
            --layer-groups {params.groups} \
            --threads {threads} \
            --patterns {output.patterns:q} \
            --prefixes {output.prefixes:q} \
            >{log:q} 2>&1
        """


rule key_removal:
    input:
        model="results/{run}/model",
        triggers="results/{run}/triggers.h5",
        corpus="results/{run}/corpus/train.h5",
        code=code("keys", "activations"),
    output:
        removal="results/{run}/keys/removal/{group}.parquet",
    log:
        "results/{run}/logs/key_removal/{group}.log",
    benchmark:
        "results/{run}/benchmarks/key_removal/{group}.tsv"
    conda:
        "../../envs/ffkv.yaml"
    threads: 4
    resources:
        gpu=setting("model/gpus"),
    params:
        per_layer=setting("keys/per_layer"),
        removal_triggers=setting("keys/removal_triggers"),
        batch_tokens=setting("activations/batch_tokens"),
        device=setting("model/device"),
        seed=setting("seed"),
        groups=setting("layer_groups"),
    shell:
        """
        ffkv keys removal \
            --model {input.model:q} \
            --triggers {input.triggers:q} \
            --corpus {input.corpus:q} \
            --per-layer {params.per_layer} \
            --removal-triggers {params.removal_triggers} \
            --batch-tokens {params.batch_tokens} \
            --device {params.device} \
            --seed {params.seed} \
            --layer-group {wildcards.group} \
            --layer-groups {params.groups} \
            --threads {threads} \
            --output {output.removal:q} \
            >{log:q} 2>&1
        """


rule key_precision:
    input:
        model="results/{run}/model",
        triggers="results/{run}/triggers.h5",
        corpus="results/{run}/corpus/train.h5",
        code=code("keys", "activations"),
    output:
        precision="results/{run}/keys/precision.csv",
    log:
        "results/{run}/logs/key_precision.log",
    benchmark:
        "results/{run}/benchmarks/key_precision.tsv"
    conda:
        "../../envs/ffkv.yaml"
    threads: 4
    resources:
        gpu=setting("model/gpus"),
    params:
        per_layer=setting("keys/per_layer"),
        batch_tokens=setting("activations/batch_tokens"),
        device=setting("model/device"),
        seed=setting("seed"),
    shell:
        """
        ffkv keys precision \
            --model {input.model:q} \
            --triggers {input.triggers:q} \
            --corpus {input.corpus:q} \
            --per-layer {params.per_layer} \
            --batch-tokens {params.batch_tokens} \
            --device {params.device} \
            --seed {params.seed} \
            --threads {threads} \
            --output {output.precision:q} \
            >{log:q} 2>&1
        """


rule keys:
    input:
        triggers="results/{run}/triggers.h5",
        patterns=parts(
            "results/{run}/keys/patterns/{group}.parquet", "group", "layer_groups"
        ),
        prefixes=parts(
            "results/{run}/keys/prefixes/{group}.parquet", "group", "layer_groups"
        ),
        removal=parts(
            "results/{run}/keys/removal/{group}.parquet", "group", "layer_groups"
        ),
        code=code("keys", "intervals.py"),
    output:
        categories="results/{run}/keys/categories.csv",
        patterns="results/{run}/keys/patterns.csv",
        removal="results/{run}/keys/removal.csv",
        activity="results/{run}/keys/activity.csv",
    log:
        "results/{run}/logs/keys.log",
    benchmark:
        "results/{run}/benchmarks/keys.tsv"
    conda:
        "../../envs/ffkv.yaml"
    threads: 1
    params:
        folder=subpath(output.categories, parent=True),
        patterns=lambda wildcards, input: [
            f"--patterns={path}" for path in input.patterns
        ],
        prefixes=lambda wildcards, input: [
            f"--prefixes={path}" for path in input.prefixes
        ],
        removal=lambda wildcards, input: [f"--removal={path}" for path in input.removal],
        seed=setting("seed"),
    shell:
        """
        ffkv keys summarize \
            --triggers {input.triggers:q} \
            {params.patterns:q} \
            {params.prefixes:q} \
            {params.removal:q} \
            --seed {params.seed} \
            --output {params.folder:q} \
            >{log:q} 2>&1
        """
