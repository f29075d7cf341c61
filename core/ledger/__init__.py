"""The memory ledger: every byte has an owner, a line on which it stands (P6).

``planning`` says before the load what will be needed, ``books`` what is held while an
engine runs, ``audit`` whether every tensor stands on exactly one line. The lines:

=================  ==============================================================
``weights``        every tensor of the model, scales and zero points included
``kv``             the pool of KV blocks
``swap``           host slots for the KV blocks of preempted sequences
``runtime``        buffers kept between steps, and the peak within the largest step
``communication``  buffers between devices; 0 on one device
``host``           tokenizer and metadata: what opening the model took, measured
``reserve``        what is left alone on purpose
=================  ==============================================================

Sizes are bytes everywhere; people read them in powers of two (1 GiB = 2**30).
"""
