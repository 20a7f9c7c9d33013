"""Model: a checkpoint, proven.

Needs: a checkpoint (trained here, a local folder, or from the hub).
Makes: results/<run>/model/ (anatomy, tokenizer, vocabulary, head) and memories.h5 (the values).
"""


rule model:
    input:
        checkpoint=tracked(checkpoint_files),
        code=code("model", "fairseq"),
    output:
        model=directory("results/{run}/model"),
        memories="results/{run}/memories.h5",
    log:
        "results/{run}/logs/model.log",
    benchmark:
        "results/{run}/benchmarks/model.tsv"
    conda:
        "../../envs/ffkv.yaml"
    threads: 4
    params:
        braced_files=untracked(checkpoint_files),
        checkpoint=checkpoint,
        revision=setting("model/revision"),
        dtype=setting("model/dtype"),
        second_matrix=setting("model/second_matrix"),
        trust_remote_code=switch("model/trust_remote_code", "trust-remote-code"),
    shell:
        """
        ffkv model \
            --checkpoint {params.checkpoint:q} \
            --revision {params.revision:q} \
            --dtype {params.dtype} \
            --second-matrix={params.second_matrix:q} \
            {params.trust_remote_code} \
            --threads {threads} \
            --output {output.model:q} \
            --memories {output.memories:q} \
            >{log:q} 2>&1
        """
