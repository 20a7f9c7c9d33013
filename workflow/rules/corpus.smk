"""Corpus: documents to sentences of token ids.

Needs: a data set or files; the model's tokenizer, BOS token and context.
Makes: results/<run>/corpus/train.h5 and validation.h5.
"""


rule corpus:
    input:
        files=runs.files("corpus"),
        commit=runs.commit("dataset"),
        model="results/{run}/model",
        copy_of=runs.copied_corpus,
    output:
        corpus="results/{run}/corpus/{split}.h5",
    log:
        "results/{run}/logs/corpus/{split}.log",
    benchmark:
        "results/{run}/benchmarks/corpus/{split}.tsv"
    conda:
        "../../envs/ffkv.yaml"
    threads: runs.setting("corpus_processes")
    params:
        content=runs.content("corpus"),
        options=runs.options("corpus"),
        commit=repeated("commit"),
        copy_of=repeated("copy_of"),
        code=code("corpus"),
    message:
        "Turn the {wildcards.split} documents of {wildcards.run} into sentences of token ids. Progress is in {log}."
    shell:
        """
        ffkv corpus {params.options} {params.commit:q} {params.copy_of:q} \
            --model {input.model:q} \
            --split {wildcards.split} \
            --corpus-processes {threads} \
            --output {output.corpus:q} \
            >{log:q} 2>&1
        """
