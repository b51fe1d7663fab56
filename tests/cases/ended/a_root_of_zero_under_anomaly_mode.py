# raised: RuntimeError: Function 'SqrtBackward0' returned nan; node `SqrtBackward0`; help: no
import warnings

import torch

warnings.simplefilter("ignore")
x = torch.zeros(3, requires_grad=True)
with torch.autograd.set_detect_anomaly(True):
    lengths = (x.exp() - 1).sqrt()  # note: the node
    loss = (lengths * 0).sum()
    loss.backward()  # raised
