"""RNN, LSTM, GRU, packed sequences, MultiheadAttention, scaled_dot_product_attention, a Transformer layer."""

import torch
from _show import show, small
from torch import nn

torch.manual_seed(0)
x = small(5, 3, 8)
for kind in (nn.RNN, nn.LSTM, nn.GRU):
    net = kind(8, 8, num_layers=2, dropout=0.1, bidirectional=True)
    net(x)[0].sum().backward()
    show(kind.__name__, *(p.grad for p in net.parameters()))
lstm = nn.LSTM(8, 8)
packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 3, 2]))
out, _ = nn.utils.rnn.pad_packed_sequence(lstm(packed)[0])
out.sum().backward()
show("packed", *(p.grad for p in lstm.parameters()))
cell, state = nn.LSTMCell(8, 8), (torch.zeros(3, 8), torch.zeros(3, 8))
for t in range(5):
    state = cell(x[t], state)
state[0].sum().backward()
show("cell", *(p.grad for p in cell.parameters()))
attention = nn.MultiheadAttention(8, 2)
for weights in (True, False):
    attention(x, x, x, need_weights=weights)[0].sum().backward()
show("attention", *(p.grad for p in attention.parameters()))
q = small(2, 2, 4, 8).requires_grad_()
torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
show("sdpa", q.grad)
layer = nn.TransformerEncoderLayer(8, 2, 16)
layer(x).square().sum().backward()
show("layer", *(p.grad for p in layer.parameters()))
layer.eval()
with torch.no_grad():
    show("fast path", layer(x))
