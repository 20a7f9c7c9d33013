"""Routing: to which experts tokens of the corpus are sent.

Needs: the model, the train split.
Makes: results/<run>/routing/: the tables of the report's section. Runs without `routing.tokens` do not use it.
"""


rule routing_measure:
    input:
        model="results/{run}/model",
        train="results/{run}/corpus/train.h5",
    output:
        tables("routing_measure"),
    log:
        "results/{run}/logs/routing_measure.log",
    benchmark:
        "results/{run}/benchmarks/routing_measure.tsv"
    priority: 12
    conda:
        "../../envs/ffkv.yaml"
    threads: 4
    resources:
        gpu=gpus(whole_model=True),
    params:
        folder=subpath(output[0], parent=True),
        options=runs.options("routing_measure"),
        memory=runs.memory_limits(),
        code=code("routing_measure"),
    message:
        "Read to which experts {wildcards.run} sends the tokens of its corpus. Progress is in {log}."
    shell:
        """
        ffkv routing measure {params.options} {params.memory} \
            --model {input.model:q} \
            --train {input.train:q} \
            --threads {threads} \
            --output {params.folder:q} \
            >{log:q} 2>&1
        """
