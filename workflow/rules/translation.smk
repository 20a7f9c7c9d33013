"""Translation: values and states, read through linear maps to the last layer (figures 4, 5 and 8 to 10 once more).

Needs: the model, both splits, values.h5, triggers.h5, the projections of the values, sampled_prefixes.h5.
Makes: results/<run>/translation/: states of train prefixes and sums of Jacobians by shard; maps, projections and tables by group of
layers; and the tables of the report's section. Runs with `values.readout: head` do not use them.
"""


rule translation_read:
    input:
        model="results/{run}/model",
        train="results/{run}/corpus/train.h5",
    output:
        states="results/{run}/translation/states/{shard}.h5",
    log:
        "results/{run}/logs/translation_read/{shard}.log",
    benchmark:
        "results/{run}/benchmarks/translation_read/{shard}.tsv"
    priority: 110
    conda:
        "../../envs/ffkv.yaml"
    threads: 4
    resources:
        gpu=gpus(whole_model=True),
    params:
        options=runs.options("translation_read"),
        memory=runs.memory_limits(),
        code=code("translation_read"),
    message:
        "Store block outputs on train prefixes in shard {wildcards.shard} of {wildcards.run}. Progress is in {log}."
    shell:
        """
        ffkv translation read {params.options} {params.memory} \
            --model {input.model:q} \
            --train {input.train:q} \
            --shard {wildcards.shard} \
            --threads {threads} \
            --output {output.states:q} \
            >{log:q} 2>&1
        """


rule translation_fit:
    input:
        states=runs.every("results/{run}/translation/states/{shard}.h5"),
        model="results/{run}/model",
        prefixes="results/{run}/sampled_prefixes.h5",
    output:
        maps="results/{run}/translation/maps/{group}.h5",
        fit="results/{run}/translation/fit/{group}.parquet",
    log:
        "results/{run}/logs/translation_fit/{group}.log",
    benchmark:
        "results/{run}/benchmarks/translation_fit/{group}.tsv"
    priority: 90
    conda:
        "../../envs/ffkv.yaml"
    threads: 4
    resources:
        gpu=gpus(),
    params:
        states=repeated("states"),
        options=runs.options("translation_fit"),
        code=code("translation_fit"),
    message:
        "Fit the maps of layer group {wildcards.group} of {wildcards.run}. Progress is in {log}."
    shell:
        """
        ffkv translation fit {params.options} {params.states:q} \
            --model {input.model:q} \
            --prefixes {input.prefixes:q} \
            --layer-group {wildcards.group} \
            --threads {threads} \
            --output-maps {output.maps:q} \
            --output-fit {output.fit:q} \
            >{log:q} 2>&1
        """


rule translation_measure:
    input:
        model="results/{run}/model",
        maps="results/{run}/translation/maps/{group}.h5",
        values_file="results/{run}/values.h5",
        triggers="results/{run}/triggers.h5",
        projections="results/{run}/values/projections/{group}.h5",
        prefixes="results/{run}/sampled_prefixes.h5",
    output:
        projections="results/{run}/translation/projections/{group}.h5",
        by_memory="results/{run}/translation/by_memory/{group}.parquet",
        by_prefix="results/{run}/translation/by_prefix/{group}.parquet",
    log:
        "results/{run}/logs/translation_measure/{group}.log",
    benchmark:
        "results/{run}/benchmarks/translation_measure/{group}.tsv"
    priority: 40
    conda:
        "../../envs/ffkv.yaml"
    threads: 4
    resources:
        gpu=gpus(),
    params:
        options=runs.options("translation_measure"),
        code=code("translation_measure"),
    message:
        "Read layer group {wildcards.group} of {wildcards.run} through its maps. Progress is in {log}."
    shell:
        """
        ffkv translation measure {params.options} \
            --model {input.model:q} \
            --maps {input.maps:q} \
            --values {input.values_file:q} \
            --triggers {input.triggers:q} \
            --projections {input.projections:q} \
            --prefixes {input.prefixes:q} \
            --layer-group {wildcards.group} \
            --threads {threads} \
            --output-projections {output.projections:q} \
            --output-by-memory {output.by_memory:q} \
            --output-by-prefix {output.by_prefix:q} \
            >{log:q} 2>&1
        """


rule translation_derive:
    input:
        model="results/{run}/model",
        train="results/{run}/corpus/train.h5",
    output:
        jacobians="results/{run}/translation/jacobians/{shard}.h5",
    log:
        "results/{run}/logs/translation_derive/{shard}.log",
    benchmark:
        "results/{run}/benchmarks/translation_derive/{shard}.tsv"
    priority: 115
    conda:
        "../../envs/ffkv.yaml"
    threads: 4
    resources:
        gpu=gpus(whole_model=True),
    params:
        options=runs.options("translation_derive"),
        memory=runs.memory_limits(),
        code=code("translation_derive"),
    message:
        "Sum Jacobians over train texts in shard {wildcards.shard} of {wildcards.run}. Progress is in {log}."
    shell:
        """
        ffkv translation derive {params.options} {params.memory} \
            --model {input.model:q} \
            --train {input.train:q} \
            --shard {wildcards.shard} \
            --threads {threads} \
            --output {output.jacobians:q} \
            >{log:q} 2>&1
        """


rule translation_average:
    input:
        runs.files("translation"),
        jacobians=runs.every("results/{run}/translation/jacobians/{shard}.h5"),
        model="results/{run}/model",
        prefixes="results/{run}/sampled_prefixes.h5",
    output:
        maps="results/{run}/translation/jacobian_maps/{group}.h5",
        fit="results/{run}/translation/jacobian_fit/{group}.parquet",
    log:
        "results/{run}/logs/translation_average/{group}.log",
    benchmark:
        "results/{run}/benchmarks/translation_average/{group}.tsv"
    priority: 90
    conda:
        "../../envs/ffkv.yaml"
    threads: 4
    resources:
        gpu=gpus(),
    params:
        jacobians=repeated("jacobians"),
        options=runs.options("translation_average"),
        content=runs.content("translation"),
        code=code("translation_average"),
    message:
        "Average the Jacobians of layer group {wildcards.group} of {wildcards.run}. Progress is in {log}."
    shell:
        """
        ffkv translation average {params.options} {params.jacobians:q} \
            --model {input.model:q} \
            --prefixes {input.prefixes:q} \
            --layer-group {wildcards.group} \
            --threads {threads} \
            --output-jacobian-maps {output.maps:q} \
            --output-jacobian-fit {output.fit:q} \
            >{log:q} 2>&1
        """


rule translation_jacobian:
    input:
        model="results/{run}/model",
        maps="results/{run}/translation/jacobian_maps/{group}.h5",
        values_file="results/{run}/values.h5",
        triggers="results/{run}/triggers.h5",
        projections="results/{run}/values/projections/{group}.h5",
        prefixes="results/{run}/sampled_prefixes.h5",
    output:
        projections="results/{run}/translation/jacobian_projections/{group}.h5",
        by_memory="results/{run}/translation/jacobian_by_memory/{group}.parquet",
        by_prefix="results/{run}/translation/jacobian_by_prefix/{group}.parquet",
    log:
        "results/{run}/logs/translation_jacobian/{group}.log",
    benchmark:
        "results/{run}/benchmarks/translation_jacobian/{group}.tsv"
    priority: 40
    conda:
        "../../envs/ffkv.yaml"
    threads: 4
    resources:
        gpu=gpus(),
    params:
        options=runs.options("translation_jacobian"),
        code=code("translation_jacobian"),
    message:
        "Read layer group {wildcards.group} of {wildcards.run} through its Jacobian lens. Progress is in {log}."
    shell:
        """
        ffkv translation jacobian {params.options} \
            --model {input.model:q} \
            --jacobian-maps {input.maps:q} \
            --values {input.values_file:q} \
            --triggers {input.triggers:q} \
            --projections {input.projections:q} \
            --prefixes {input.prefixes:q} \
            --layer-group {wildcards.group} \
            --threads {threads} \
            --output-jacobian-projections {output.projections:q} \
            --output-jacobian-by-memory {output.by_memory:q} \
            --output-jacobian-by-prefix {output.by_prefix:q} \
            >{log:q} 2>&1
        """


rule translation_keys:
    input:
        jacobians=runs.every("results/{run}/translation/jacobians/{shard}.h5"),
        model="results/{run}/model",
        triggers="results/{run}/triggers.h5",
        train="results/{run}/corpus/train.h5",
    output:
        tokens="results/{run}/keys/read_tokens/{group}.parquet",
        by_layer="results/{run}/keys/read_by_layer/{group}.parquet",
    log:
        "results/{run}/logs/translation_keys/{group}.log",
    benchmark:
        "results/{run}/benchmarks/translation_keys/{group}.tsv"
    priority: 25
    conda:
        "../../envs/ffkv.yaml"
    threads: 4
    resources:
        gpu=gpus(whole_model=True),
    params:
        jacobians=repeated("jacobians"),
        options=runs.options("translation_keys"),
        memory=runs.memory_limits(),
        code=code("translation_keys"),
    message:
        "Score tokens by the keys of layer group {wildcards.group} of {wildcards.run}. Progress is in {log}."
    shell:
        """
        ffkv translation keys {params.options} {params.memory} {params.jacobians:q} \
            --model {input.model:q} \
            --triggers {input.triggers:q} \
            --train {input.train:q} \
            --layer-group {wildcards.group} \
            --threads {threads} \
            --output-read-tokens {output.tokens:q} \
            --output-read-by-layer {output.by_layer:q} \
            >{log:q} 2>&1
        """


rule translation_summarize:
    input:
        fit=runs.every("results/{run}/translation/fit/{group}.parquet"),
        by_memory=runs.every("results/{run}/translation/by_memory/{group}.parquet"),
        by_prefix=runs.every("results/{run}/translation/by_prefix/{group}.parquet"),
        jacobian_fit=runs.every(
            "results/{run}/translation/jacobian_fit/{group}.parquet"
        ),
        jacobian_by_memory=runs.every(
            "results/{run}/translation/jacobian_by_memory/{group}.parquet"
        ),
        jacobian_by_prefix=runs.every(
            "results/{run}/translation/jacobian_by_prefix/{group}.parquet"
        ),
        model="results/{run}/model",
        triggers="results/{run}/triggers.h5",
        train="results/{run}/corpus/train.h5",
    output:
        tables("translation_summarize"),
    log:
        "results/{run}/logs/translation_summarize.log",
    benchmark:
        "results/{run}/benchmarks/translation_summarize.tsv"
    priority: 12
    conda:
        "../../envs/ffkv.yaml"
    params:
        folder=subpath(output[0], parent=True),
        fit=repeated("fit"),
        by_memory=repeated("by_memory"),
        by_prefix=repeated("by_prefix"),
        jacobian_fit=repeated("jacobian_fit"),
        jacobian_by_memory=repeated("jacobian_by_memory"),
        jacobian_by_prefix=repeated("jacobian_by_prefix"),
        options=runs.options("translation_summarize"),
        code=code("translation_summarize"),
    message:
        "Summarize what values and states of {wildcards.run} say through the maps."
    shell:
        """
        ffkv translation summarize {params.options} {params.fit:q} {params.by_memory:q} {params.by_prefix:q} \
            {params.jacobian_fit:q} {params.jacobian_by_memory:q} {params.jacobian_by_prefix:q} \
            --model {input.model:q} \
            --triggers {input.triggers:q} \
            --train {input.train:q} \
            --output {params.folder:q} \
            >{log:q} 2>&1
        """
