"""Corpus: documents to sentences of token ids.

Needs: a data set or files; the model's tokenizer, BOS token and context.
Makes: results/<run>/corpus/train.h5 and validation.h5.
"""


rule corpus:
    input:
        files=tracked(corpus_files),
        model="results/{run}/model",
        code=code("corpus"),
    output:
        corpus="results/{run}/corpus/{split}.h5",
    log:
        "results/{run}/logs/corpus/{split}.log",
    benchmark:
        "results/{run}/benchmarks/corpus/{split}.tsv"
    conda:
        "../../envs/ffkv.yaml"
    threads: 1
    params:
        braced_files=untracked(corpus_files),
        dataset=setting("corpus/dataset"),
        config=setting("corpus/config"),
        revision=setting("corpus/revision"),
        train=repeated("train", "corpus/train"),
        validation=repeated("validation", "corpus/validation"),
        validation_share=setting("corpus/validation_share"),
        text_field=setting("corpus/text_field"),
        txt_document=setting("corpus/txt_document"),
        splitter=setting("corpus/splitter"),
        pretokenized=switch("corpus/pretokenized", "pretokenized"),
        long_sentences=setting("corpus/long_sentences"),
        bos=setting("corpus/bos"),
        deduplicate=switch("corpus/deduplicate", "deduplicate"),
        limit=setting("corpus/limit"),
    shell:
        """
        ffkv corpus \
            --model {input.model:q} \
            --split {wildcards.split} \
            --dataset {params.dataset:q} \
            --config {params.config:q} \
            --revision {params.revision:q} \
            {params.train} \
            {params.validation} \
            --validation-share {params.validation_share} \
            --text-field {params.text_field:q} \
            --txt-document {params.txt_document} \
            --splitter {params.splitter} \
            {params.pretokenized} \
            --long-sentences {params.long_sentences} \
            --bos {params.bos} \
            {params.deduplicate} \
            --limit {params.limit} \
            --threads {threads} \
            --output {output.corpus:q} \
            >{log:q} 2>&1
        """
