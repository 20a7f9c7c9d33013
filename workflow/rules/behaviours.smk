"""Behaviours: which memories cause what the model does on a set of prompts.

Needs: the model, triggers.h5, the projections of the values, sampled_prefixes.h5, both splits, files of prompts.
Makes: results/<run>/behaviours/<behaviour>/: encoded prompts, states and effects by shard of the prompts, tables by memory; and
in results/<run>/behaviours/ the tables of the report's section. Runs without `behaviours` do not use them.
"""


rule behaviours_encode:
    input:
        runs.files("behaviours"),
        model="results/{run}/model",
        train="results/{run}/corpus/train.h5",
        prefixes="results/{run}/sampled_prefixes.h5",
        validation="results/{run}/corpus/validation.h5",
    output:
        prompts="results/{run}/behaviours/{behaviour}/prompts.parquet",
    log:
        "results/{run}/logs/behaviours_encode/{behaviour}.log",
    benchmark:
        "results/{run}/benchmarks/behaviours_encode/{behaviour}.tsv"
    priority: 120
    conda:
        "../../envs/ffkv.yaml"
    params:
        options=runs.options("behaviours_encode"),
        content=runs.content("behaviours"),
        code=code("behaviours_encode"),
    message:
        "Encode the prompts of the behaviour {wildcards.behaviour} of {wildcards.run}."
    shell:
        """
        ffkv behaviours encode {params.options} \
            --name {wildcards.behaviour} \
            --model {input.model:q} \
            --train {input.train:q} \
            --prefixes {input.prefixes:q} \
            --validation {input.validation:q} \
            --output {output.prompts:q} \
            >{log:q} 2>&1
        """


rule behaviours_read:
    input:
        model="results/{run}/model",
        prompts="results/{run}/behaviours/{behaviour}/prompts.parquet",
        triggers="results/{run}/triggers.h5",
    output:
        states="results/{run}/behaviours/{behaviour}/states/{shard}.h5",
    log:
        "results/{run}/logs/behaviours_read/{behaviour}/{shard}.log",
    benchmark:
        "results/{run}/benchmarks/behaviours_read/{behaviour}/{shard}.tsv"
    priority: 110
    conda:
        "../../envs/ffkv.yaml"
    threads: 4
    resources:
        gpu=gpus(whole_model=True),
    params:
        options=runs.options("behaviours_read"),
        memory=runs.memory_limits(),
        code=code("behaviours_read"),
    message:
        "Read memories on the prompts of {wildcards.behaviour} in shard {wildcards.shard} of {wildcards.run}. Progress is in {log}."
    shell:
        """
        ffkv behaviours read {params.options} {params.memory} \
            --name {wildcards.behaviour} \
            --model {input.model:q} \
            --encode {input.prompts:q} \
            --triggers {input.triggers:q} \
            --shard {wildcards.shard} \
            --threads {threads} \
            --output {output.states:q} \
            >{log:q} 2>&1
        """


rule behaviours_choose:
    input:
        model="results/{run}/model",
        prompts="results/{run}/behaviours/{behaviour}/prompts.parquet",
        read=runs.every("results/{run}/behaviours/{behaviour}/states/{shard}.h5"),
    output:
        memories="results/{run}/behaviours/{behaviour}/memories.parquet",
        answers="results/{run}/behaviours/{behaviour}/answers.parquet",
        stability="results/{run}/behaviours/{behaviour}/stability.parquet",
    log:
        "results/{run}/logs/behaviours_choose/{behaviour}.log",
    benchmark:
        "results/{run}/benchmarks/behaviours_choose/{behaviour}.tsv"
    priority: 90
    conda:
        "../../envs/ffkv.yaml"
    params:
        read=repeated("read"),
        options=runs.options("behaviours_choose"),
        code=code("behaviours_choose"),
    message:
        "Choose the memories of the behaviour {wildcards.behaviour} of {wildcards.run}."
    shell:
        """
        ffkv behaviours choose {params.options} {params.read:q} \
            --name {wildcards.behaviour} \
            --model {input.model:q} \
            --encode {input.prompts:q} \
            --output-memories {output.memories:q} \
            --output-answers {output.answers:q} \
            --output-stability {output.stability:q} \
            >{log:q} 2>&1
        """


rule behaviours_measure:
    input:
        model="results/{run}/model",
        prompts="results/{run}/behaviours/{behaviour}/prompts.parquet",
        memories="results/{run}/behaviours/{behaviour}/memories.parquet",
        answers="results/{run}/behaviours/{behaviour}/answers.parquet",
        triggers="results/{run}/triggers.h5",
        prefixes="results/{run}/sampled_prefixes.h5",
        validation="results/{run}/corpus/validation.h5",
    output:
        effects="results/{run}/behaviours/{behaviour}/effects/{shard}.parquet",
        sets="results/{run}/behaviours/{behaviour}/sets/{shard}.parquet",
        parts="results/{run}/behaviours/{behaviour}/parts/{shard}.parquet",
        side_effects="results/{run}/behaviours/{behaviour}/side_effects/{shard}.parquet",
        writers="results/{run}/behaviours/{behaviour}/writers/{shard}.parquet",
    log:
        "results/{run}/logs/behaviours_measure/{behaviour}/{shard}.log",
    benchmark:
        "results/{run}/benchmarks/behaviours_measure/{behaviour}/{shard}.tsv"
    priority: 85
    conda:
        "../../envs/ffkv.yaml"
    threads: 4
    resources:
        gpu=gpus(whole_model=True),
    params:
        options=runs.options("behaviours_measure"),
        memory=runs.memory_limits(),
        code=code("behaviours_measure"),
    message:
        "Patch memories on the prompts of {wildcards.behaviour} in shard {wildcards.shard} of {wildcards.run}. Progress is in {log}."
    shell:
        """
        ffkv behaviours measure {params.options} {params.memory} \
            --name {wildcards.behaviour} \
            --model {input.model:q} \
            --encode {input.prompts:q} \
            --memories {input.memories:q} \
            --answers {input.answers:q} \
            --triggers {input.triggers:q} \
            --prefixes {input.prefixes:q} \
            --validation {input.validation:q} \
            --shard {wildcards.shard} \
            --threads {threads} \
            --output-effects {output.effects:q} \
            --output-sets {output.sets:q} \
            --output-parts {output.parts:q} \
            --output-side-effects {output.side_effects:q} \
            --output-writers {output.writers:q} \
            >{log:q} 2>&1
        """


rule behaviours_graph:
    input:
        model="results/{run}/model",
        prompts="results/{run}/behaviours/{behaviour}/prompts.parquet",
        answers="results/{run}/behaviours/{behaviour}/answers.parquet",
        triggers="results/{run}/triggers.h5",
    output:
        sets="results/{run}/behaviours/{behaviour}/graph_sets.parquet",
        nodes="results/{run}/behaviours/{behaviour}/graph_nodes.parquet",
        edges="results/{run}/behaviours/{behaviour}/graph_edges.parquet",
        paths="results/{run}/behaviours/{behaviour}/graph_paths.parquet",
    log:
        "results/{run}/logs/behaviours_graph/{behaviour}.log",
    benchmark:
        "results/{run}/benchmarks/behaviours_graph/{behaviour}.tsv"
    priority: 50
    conda:
        "../../envs/ffkv.yaml"
    threads: 4
    resources:
        gpu=gpus(whole_model=True),
    params:
        options=runs.options("behaviours_graph"),
        memory=runs.memory_limits(),
        code=code("behaviours_graph"),
    message:
        "Make the graph of the behaviour {wildcards.behaviour} of {wildcards.run}. Progress is in {log}."
    shell:
        """
        ffkv behaviours graph {params.options} {params.memory} \
            --name {wildcards.behaviour} \
            --model {input.model:q} \
            --encode {input.prompts:q} \
            --answers {input.answers:q} \
            --triggers {input.triggers:q} \
            --threads {threads} \
            --output-graph-sets {output.sets:q} \
            --output-graph-nodes {output.nodes:q} \
            --output-graph-edges {output.edges:q} \
            --output-graph-paths {output.paths:q} \
            >{log:q} 2>&1
        """


rule behaviours_experts:
    input:
        model="results/{run}/model",
        prompts="results/{run}/behaviours/{behaviour}/prompts.parquet",
        answers="results/{run}/behaviours/{behaviour}/answers.parquet",
        triggers="results/{run}/triggers.h5",
    output:
        experts="results/{run}/behaviours/{behaviour}/experts.parquet",
    log:
        "results/{run}/logs/behaviours_experts/{behaviour}.log",
    benchmark:
        "results/{run}/benchmarks/behaviours_experts/{behaviour}.tsv"
    priority: 50
    conda:
        "../../envs/ffkv.yaml"
    threads: 4
    resources:
        gpu=gpus(whole_model=True),
    params:
        options=runs.options("behaviours_experts"),
        memory=runs.memory_limits(),
        code=code("behaviours_experts"),
    message:
        "Measure experts on the prompts of {wildcards.behaviour} of {wildcards.run}. Progress is in {log}."
    shell:
        """
        ffkv behaviours experts {params.options} {params.memory} \
            --name {wildcards.behaviour} \
            --model {input.model:q} \
            --encode {input.prompts:q} \
            --answers {input.answers:q} \
            --triggers {input.triggers:q} \
            --threads {threads} \
            --output {output.experts:q} \
            >{log:q} 2>&1
        """


rule behaviours_summarize:
    input:
        model="results/{run}/model",
        encode=runs.every("results/{run}/behaviours/{behaviour}/prompts.parquet"),
        memories=runs.every("results/{run}/behaviours/{behaviour}/memories.parquet"),
        answers=runs.every("results/{run}/behaviours/{behaviour}/answers.parquet"),
        stability=runs.every("results/{run}/behaviours/{behaviour}/stability.parquet"),
        effects=runs.every(
            "results/{run}/behaviours/{behaviour}/effects/{shard}.parquet"
        ),
        sets=runs.every("results/{run}/behaviours/{behaviour}/sets/{shard}.parquet"),
        parts=runs.every("results/{run}/behaviours/{behaviour}/parts/{shard}.parquet"),
        side_effects=runs.every(
            "results/{run}/behaviours/{behaviour}/side_effects/{shard}.parquet"
        ),
        writers=runs.every(
            "results/{run}/behaviours/{behaviour}/writers/{shard}.parquet"
        ),
        graph_sets=runs.every("results/{run}/behaviours/{behaviour}/graph_sets.parquet"),
        graph_nodes=runs.every(
            "results/{run}/behaviours/{behaviour}/graph_nodes.parquet"
        ),
        graph_edges=runs.every(
            "results/{run}/behaviours/{behaviour}/graph_edges.parquet"
        ),
        graph_paths=runs.every(
            "results/{run}/behaviours/{behaviour}/graph_paths.parquet"
        ),
        experts=runs.every("results/{run}/behaviours/{behaviour}/experts.parquet"),
        projections=runs.every("results/{run}/values/projections/{group}.h5"),
    output:
        tables("behaviours_summarize"),
    log:
        "results/{run}/logs/behaviours_summarize.log",
    benchmark:
        "results/{run}/benchmarks/behaviours_summarize.tsv"
    priority: 12
    conda:
        "../../envs/ffkv.yaml"
    params:
        folder=subpath(output[0], parent=True),
        encode=repeated("encode"),
        memories=repeated("memories"),
        answers=repeated("answers"),
        stability=repeated("stability"),
        effects=repeated("effects"),
        sets=repeated("sets"),
        parts=repeated("parts"),
        side_effects=repeated("side_effects"),
        writers=repeated("writers"),
        graph_sets=repeated("graph_sets"),
        graph_nodes=repeated("graph_nodes"),
        graph_edges=repeated("graph_edges"),
        graph_paths=repeated("graph_paths"),
        experts=repeated("experts"),
        projections=repeated("projections"),
        options=runs.options("behaviours_summarize"),
        code=code("behaviours_summarize"),
    message:
        "Summarize the behaviours of {wildcards.run} for the report."
    shell:
        """
        ffkv behaviours summarize {params.options} \
            {params.encode:q} {params.memories:q} {params.answers:q} {params.stability:q} \
            {params.effects:q} {params.sets:q} {params.parts:q} {params.side_effects:q} \
            {params.writers:q} {params.graph_sets:q} {params.graph_nodes:q} {params.graph_edges:q} {params.graph_paths:q} \
            {params.experts:q} {params.projections:q} \
            --model {input.model:q} \
            --output {params.folder:q} \
            >{log:q} 2>&1
        """
