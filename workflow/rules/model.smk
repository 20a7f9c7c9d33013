"""Model: a checkpoint, proven.

Needs: a checkpoint (trained here, a local folder, or from the hub).
Makes: results/<run>/model/ (anatomy, tokenizer, vocabulary, head) and values.h5.
"""


rule model:
    input:
        trained=trained_checkpoint,
        files=files_of_checkpoint,
        commit=commit("model"),
    output:
        model=directory("results/{run}/model"),
        values_file="results/{run}/values.h5",
    log:
        "results/{run}/logs/model.log",
    benchmark:
        "results/{run}/benchmarks/model.tsv"
    conda:
        "../../envs/ffkv.yaml"
    threads: 4
    params:
        # Snakemake does not track a parameter that is made from an input. `checkpoint_setting` is tracked instead.
        checkpoint=place_of_checkpoint,
        checkpoint_setting=setting("model/checkpoint"),
        content=content_of_checkpoint,
        options=options(
            "model/revision",
            "model/adapter",
            "model/adapter_revision",
            "model/gguf",
            "model/weights",
            "model/weights_seed",
            "model/dtype",
            "model/second_matrix",
            "model/trust_remote_code",
        ),
        commit=repeated("commit"),
        memory=memory_limits,
        code=code("model"),
    message:
        "Prove the feed-forward layers of {wildcards.run}, and write its values and head."
    shell:
        """
        ffkv model {params.options} {params.memory} {params.commit:q} \
            --checkpoint {params.checkpoint:q} \
            --threads {threads} \
            --output {output.model:q} \
            --output-values {output.values_file:q} \
            >{log:q} 2>&1
        """
