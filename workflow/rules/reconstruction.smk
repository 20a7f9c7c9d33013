"""Reconstruction: how much of a layer's output its dictionary makes again.

Needs: the model, the validation split.
Makes: results/<run>/reconstruction/: the table of the report's section. Runs without a `dictionary` do not use it. The package ffkv-dictionaries has its step.
"""


rule reconstruction_measure:
    input:
        model="results/{run}/model",
        validation="results/{run}/corpus/validation.h5",
    output:
        tables("reconstruction_measure"),
    log:
        "results/{run}/logs/reconstruction_measure.log",
    benchmark:
        "results/{run}/benchmarks/reconstruction_measure.tsv"
    priority: 12
    conda:
        "../../envs/ffkv.yaml"
    threads: 4
    resources:
        gpu=gpus(whole_model=True),
    params:
        folder=subpath(output[0], parent=True),
        options=runs.options("reconstruction_measure"),
        memory=runs.memory_limits(),
        code=code("reconstruction_measure"),
    message:
        "Measure how much dictionaries of {wildcards.run} make again. Progress is in {log}."
    shell:
        """
        ffkv reconstruction measure {params.options} {params.memory} \
            --model {input.model:q} \
            --validation {input.validation:q} \
            --threads {threads} \
            --output {params.folder:q} \
            >{log:q} 2>&1
        """
