"""Embedded: a small model that the workflow trains itself, such as that of configs/embedded.yaml.

Needs: nothing but Python's standard library, whose English documentation is the corpus; or another text, and a model of
another run that is trained further.
Makes: results/<run>/checkpoint/, an ordinary checkpoint folder, with its training curve.
"""


rule train:
    input:
        start=runs.tuned_checkpoint,
        files=runs.files("tuning"),
    output:
        checkpoint=directory("results/{run}/checkpoint"),
    log:
        "results/{run}/logs/train.log",
    benchmark:
        "results/{run}/benchmarks/train.tsv"
    wildcard_constraints:
        run=runs.that("train"),
    priority: 350
    conda:
        "../../envs/ffkv.yaml"
    threads: 4
    params:
        options=runs.options("train"),
        content=runs.content("tuning"),
        code=code("train"),
    message:
        "Train the model of {wildcards.run}. Progress is in {log}."
    shell:
        """
        ffkv train {params.options} \
            --threads {threads} \
            --output {output.checkpoint:q} \
            >{log:q} 2>&1
        """
