"""Activations: passes of the model over the corpus.

Needs: the proven model, both splits.
Makes: results/<run>/triggers.h5 (top t prefixes and statistics of every key, over train), from shards that are deleted then;
and sampled_prefixes.h5 (y, o and m of sampled validation prefixes), which reads the files of its shards.
"""


rule triggers:
    input:
        model="results/{run}/model",
        corpus="results/{run}/corpus/train.h5",
    output:
        # Each is as large as the merged file, and nothing else reads it.
        triggers=temp("results/{run}/triggers/{shard}.h5"),
    log:
        "results/{run}/logs/triggers/{shard}.log",
    benchmark:
        "results/{run}/benchmarks/triggers/{shard}.tsv"
    priority: 257
    conda:
        "../../envs/ffkv.yaml"
    threads: 4
    resources:
        gpu=gpus(whole_model=True),
    params:
        options=runs.options("triggers"),
        memory=runs.memory_limits(),
        code=code("triggers"),
    message:
        "Find the trigger examples of every key in shard {wildcards.shard} of {wildcards.run}. Progress is in {log}."
    shell:
        """
        ffkv triggers {params.options} {params.memory} \
            --model {input.model:q} \
            --corpus {input.corpus:q} \
            --shard {wildcards.shard} \
            --threads {threads} \
            --output {output.triggers:q} \
            >{log:q} 2>&1
        """


rule merge_triggers:
    input:
        shards=runs.every("results/{run}/triggers/{shard}.h5"),
    output:
        triggers="results/{run}/triggers.h5",
    log:
        "results/{run}/logs/merge_triggers.log",
    benchmark:
        "results/{run}/benchmarks/merge_triggers.tsv"
    priority: 163
    conda:
        "../../envs/ffkv.yaml"
    params:
        code=code("merge_triggers"),
    message:
        "Merge the trigger examples of all shards of {wildcards.run}."
    shell:
        """
        ffkv merge-triggers {input.shards:q} \
            --output {output.triggers:q} \
            >{log:q} 2>&1
        """


rule sampled_prefixes:
    input:
        model="results/{run}/model",
        corpus="results/{run}/corpus/validation.h5",
    output:
        prefixes="results/{run}/sampled_prefixes/{shard}.h5",
    log:
        "results/{run}/logs/sampled_prefixes/{shard}.log",
    benchmark:
        "results/{run}/benchmarks/sampled_prefixes/{shard}.tsv"
    priority: 139
    conda:
        "../../envs/ffkv.yaml"
    threads: 4
    resources:
        gpu=gpus(whole_model=True),
    params:
        options=runs.options("sampled_prefixes"),
        memory=runs.memory_limits(),
        code=code("sampled_prefixes"),
    message:
        "Store the activations of the sampled prefixes in shard {wildcards.shard} of {wildcards.run}. Progress is in {log}."
    shell:
        """
        ffkv sampled-prefixes {params.options} {params.memory} \
            --model {input.model:q} \
            --corpus {input.corpus:q} \
            --shard {wildcards.shard} \
            --threads {threads} \
            --output {output.prefixes:q} \
            >{log:q} 2>&1
        """


rule merge_sampled_prefixes:
    input:
        shards=runs.every("results/{run}/sampled_prefixes/{shard}.h5"),
        model="results/{run}/model",
    output:
        prefixes="results/{run}/sampled_prefixes.h5",
    log:
        "results/{run}/logs/merge_sampled_prefixes.log",
    benchmark:
        "results/{run}/benchmarks/merge_sampled_prefixes.tsv"
    priority: 124
    conda:
        "../../envs/ffkv.yaml"
    params:
        code=code("merge_sampled_prefixes"),
    message:
        "Merge the sampled prefixes of all shards of {wildcards.run}."
    shell:
        """
        ffkv merge-sampled-prefixes {input.shards:q} \
            --model {input.model:q} \
            --output {output.prefixes:q} \
            >{log:q} 2>&1
        """
