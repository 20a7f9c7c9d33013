"""Model: a checkpoint, proven.

Needs: a checkpoint (trained here, unpacked from a GGUF file, a local folder, or from the hub).
Makes: results/<run>/model/ (anatomy, tokenizer, vocabulary, head) and values.h5.
"""


rule model:
    input:
        trained=runs.trained_checkpoint,
        unpacked=runs.unpacked_checkpoint,
        files=runs.files("checkpoint"),
        dictionary=runs.files("dictionary"),
        commit=runs.commit("model"),
    output:
        model=directory("results/{run}/model"),
        values_file="results/{run}/values.h5",
    log:
        "results/{run}/logs/model.log",
    benchmark:
        "results/{run}/benchmarks/model.tsv"
    priority: 288
    conda:
        "../../envs/ffkv.yaml"
    threads: 4
    params:
        # Snakemake does not track a parameter that is made from an input. `checkpoint_setting` is tracked instead.
        checkpoint=runs.place_of_checkpoint,
        checkpoint_setting=runs.setting("model/checkpoint"),
        content=runs.content("checkpoint"),
        dictionary=runs.content("dictionary"),
        options=runs.options("model"),
        commit=repeated("commit"),
        unpacked=repeated("unpacked"),
        memory=runs.memory_limits(),
        code=code("model"),
    message:
        "Prove the feed-forward layers of {wildcards.run}, and write its values and head."
    shell:
        """
        ffkv model {params.options} {params.memory} {params.commit:q} {params.unpacked:q} \
            --checkpoint {params.checkpoint:q} \
            --threads {threads} \
            --output {output.model:q} \
            --output-values {output.values_file:q} \
            >{log:q} 2>&1
        """
