"""What comes after a detector: sigmoid, a boolean mask (its size depends on the data), boxes, areas, the best."""

import torch

scores_in, deltas = torch.randn(8, 20000, 4, device="cuda"), torch.randn(8, 20000, 4, device="cuda")
anchors = torch.rand(20000, 4, device="cuda") * 512


def step():
    with torch.no_grad():
        scores, classes = torch.sigmoid(scores_in).max(-1)
        xy = anchors[:, :2] + deltas[..., :2] * anchors[:, 2:]
        wh = anchors[:, 2:] * torch.exp(deltas[..., 2:].clamp(max=4.0))
        boxes = torch.cat((xy - wh / 2, xy + wh / 2), -1).clamp(0, 512)
        keep = scores > 0.9
        boxes, scores, classes = boxes[keep], scores[keep], classes[keep]
        area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
        order = torch.argsort(scores * torch.sqrt(area + 1.0), descending=True)
        return boxes[order], scores[order], classes[order]
