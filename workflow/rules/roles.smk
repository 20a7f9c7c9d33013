"""Roles: what the weights of memories alone say of them.

Needs: the checkpoint, values.h5, the head; the projections of the values; triggers.h5 and the train split.
Makes: results/<run>/roles/: tables of memories and of layers, by group of layers.
"""


rule roles_measure:
    input:
        model="results/{run}/model",
        values_file="results/{run}/values.h5",
        projections="results/{run}/values/projections/{group}.h5",
        triggers="results/{run}/triggers.h5",
        train="results/{run}/corpus/train.h5",
    output:
        by_memory="results/{run}/roles/by_memory/{group}.parquet",
        by_layer="results/{run}/roles/by_layer/{group}.parquet",
        types="results/{run}/roles/types/{group}.parquet",
        sign_cases="results/{run}/roles/sign_cases/{group}.parquet",
    log:
        "results/{run}/logs/roles_measure/{group}.log",
    benchmark:
        "results/{run}/benchmarks/roles_measure/{group}.tsv"
    priority: 21
    conda:
        "../../envs/ffkv.yaml"
    threads: 4
    params:
        options=runs.options("roles_measure"),
        memory=runs.memory_limits(),
        code=code("roles_measure"),
    message:
        "Read the roles of layer group {wildcards.group} of {wildcards.run} from its weights. Progress is in {log}."
    shell:
        """
        ffkv roles measure {params.options} {params.memory} \
            --model {input.model:q} \
            --values {input.values_file:q} \
            --projections {input.projections:q} \
            --triggers {input.triggers:q} \
            --train {input.train:q} \
            --layer-group {wildcards.group} \
            --threads {threads} \
            --output-by-memory {output.by_memory:q} \
            --output-by-layer {output.by_layer:q} \
            --output-types {output.types:q} \
            --output-sign-cases {output.sign_cases:q} \
            >{log:q} 2>&1
        """
