"""Embedded: the default run's own model.

Needs: nothing but Python's standard library, whose English documentation is the corpus.
Makes: results/<run>/checkpoint/, an ordinary checkpoint folder, with its training curve.
"""


rule train:
    input:
        code=code("embedded", "corpus"),
    output:
        checkpoint=directory("results/{run}/checkpoint"),
    log:
        "results/{run}/logs/train.log",
    benchmark:
        "results/{run}/benchmarks/train.tsv"
    conda:
        "../../envs/ffkv.yaml"
    threads: 4
    params:
        layers=setting("embedded/layers"),
        width=setting("embedded/width"),
        heads=setting("embedded/heads"),
        vocabulary=setting("embedded/vocabulary"),
        context=setting("embedded/context"),
        steps=setting("embedded/steps"),
        batch_tokens=setting("embedded/batch_tokens"),
        learning_rate=setting("embedded/learning_rate"),
        validation_share=embedded_corpus("validation_share"),
        limit=embedded_corpus("limit"),
        seed=setting("seed"),
    shell:
        """
        ffkv train \
            --layers {params.layers} \
            --width {params.width} \
            --heads {params.heads} \
            --vocabulary {params.vocabulary} \
            --context {params.context} \
            --steps {params.steps} \
            --batch-tokens {params.batch_tokens} \
            --learning-rate {params.learning_rate} \
            --validation-share {params.validation_share} \
            --limit {params.limit} \
            --seed {params.seed} \
            --threads {threads} \
            --output {output.checkpoint:q} \
            >{log:q} 2>&1
        """
