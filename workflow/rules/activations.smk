"""Activations: passes of the model over the corpus.

Needs: the proven model, both splits.
Makes: results/<run>/triggers.h5 (top t prefixes and statistics of every key, over train) and prefixes.h5 (r, x, y, o and m
of sampled validation prefixes), each from its shards.
"""


rule triggers:
    input:
        model="results/{run}/model",
        corpus="results/{run}/corpus/train.h5",
        code=code("activations"),
    output:
        triggers="results/{run}/triggers/{shard}.h5",
    log:
        "results/{run}/logs/triggers/{shard}.log",
    benchmark:
        "results/{run}/benchmarks/triggers/{shard}.tsv"
    conda:
        "../../envs/ffkv.yaml"
    threads: 4
    resources:
        gpu=setting("model/gpus"),
    params:
        per_key=setting("triggers/per_key"),
        one_prefix=switch("triggers/one_prefix_per_sentence", "one-prefix-per-sentence"),
        empty_prefix=switch("triggers/include_empty_prefix", "include-empty-prefix"),
        negative=switch("triggers/negative", "negative"),
        batch_tokens=setting("activations/batch_tokens"),
        block_sentences=setting("activations/block_sentences"),
        device=setting("model/device"),
        shards=setting("shards"),
    shell:
        """
        ffkv triggers \
            --model {input.model:q} \
            --corpus {input.corpus:q} \
            --per-key {params.per_key} \
            {params.one_prefix} \
            {params.empty_prefix} \
            {params.negative} \
            --batch-tokens {params.batch_tokens} \
            --block-sentences {params.block_sentences} \
            --device {params.device} \
            --shard {wildcards.shard} \
            --shards {params.shards} \
            --threads {threads} \
            --output {output.triggers:q} \
            >{log:q} 2>&1
        """


rule merge_triggers:
    input:
        shards=parts("results/{run}/triggers/{shard}.h5", "shard", "shards"),
        code=code("activations"),
    output:
        triggers="results/{run}/triggers.h5",
    log:
        "results/{run}/logs/merge_triggers.log",
    benchmark:
        "results/{run}/benchmarks/merge_triggers.tsv"
    conda:
        "../../envs/ffkv.yaml"
    threads: 1
    shell:
        """
        ffkv merge-triggers \
            {input.shards:q} \
            --output {output.triggers:q} \
            >{log:q} 2>&1
        """


rule prefixes:
    input:
        model="results/{run}/model",
        corpus="results/{run}/corpus/validation.h5",
        code=code("activations"),
    output:
        prefixes="results/{run}/prefixes/{shard}.h5",
    log:
        "results/{run}/logs/prefixes/{shard}.log",
    benchmark:
        "results/{run}/benchmarks/prefixes/{shard}.tsv"
    conda:
        "../../envs/ffkv.yaml"
    threads: 4
    resources:
        gpu=setting("model/gpus"),
    params:
        prefixes=setting("prefixes/count"),
        sample=setting("prefixes/sample"),
        batch_tokens=setting("activations/batch_tokens"),
        block_sentences=setting("activations/block_sentences"),
        device=setting("model/device"),
        seed=setting("seed"),
        shards=setting("shards"),
    shell:
        """
        ffkv prefixes \
            --model {input.model:q} \
            --corpus {input.corpus:q} \
            --count {params.prefixes} \
            --sample {params.sample} \
            --batch-tokens {params.batch_tokens} \
            --block-sentences {params.block_sentences} \
            --device {params.device} \
            --seed {params.seed} \
            --shard {wildcards.shard} \
            --shards {params.shards} \
            --threads {threads} \
            --output {output.prefixes:q} \
            >{log:q} 2>&1
        """


rule merge_prefixes:
    input:
        shards=parts("results/{run}/prefixes/{shard}.h5", "shard", "shards"),
        model="results/{run}/model",
        code=code("activations"),
    output:
        prefixes="results/{run}/prefixes.h5",
    log:
        "results/{run}/logs/merge_prefixes.log",
    benchmark:
        "results/{run}/benchmarks/merge_prefixes.tsv"
    conda:
        "../../envs/ffkv.yaml"
    threads: 1
    shell:
        """
        ffkv merge-prefixes \
            {input.shards:q} \
            --model {input.model:q} \
            --output {output.prefixes:q} \
            >{log:q} 2>&1
        """
