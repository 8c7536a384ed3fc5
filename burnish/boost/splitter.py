"""Weights of leaves and gains of splits (thesis-chen eqs. 2.5–2.7) with L1, a largest weight and monotone bounds."""

import math

from numba.extending import register_jitable

UNBOUNDED = math.inf

# For Python they are functions as any other; in a kernel they are a part of it.
_shared = register_jitable(error_model="numpy", nogil=True, no_cfunc_wrapper=True, _nrt=False)


@_shared
def soft_threshold(gradient: float, reg_alpha: float) -> float:
    """The sum of gradients drawn towards 0 by the L1 penalty: what remains of G in eqs. 2.5–2.7."""
    above, below = gradient - reg_alpha, gradient + reg_alpha
    return above if above > 0.0 else below if below < 0.0 else 0.0


@_shared
def leaf_weight(
    gradient: float,
    hessian: float,
    reg_lambda: float,
    reg_alpha: float,
    max_delta_step: float,
    lower: float,
    upper: float,
) -> float:
    """The best weight of a leaf (eq. 2.5) in ``[lower, upper]``, at most `max_delta_step` in size unless that is 0.

    The weight is 0 (clipped to the bounds) where the curvature is not positive.
    """
    weight = 0.0
    if hessian > 0.0 and hessian + reg_lambda > 0.0:
        weight = -soft_threshold(gradient, reg_alpha) / (hessian + reg_lambda)
        if max_delta_step > 0.0:
            weight = weight if weight > -max_delta_step else -max_delta_step
            weight = weight if weight < max_delta_step else max_delta_step
    weight = weight if weight > lower else lower  # `max` and `min` would be compiled for themselves
    return weight if weight < upper else upper


@_shared
def weight_score(gradient: float, hessian: float, weight: float, reg_lambda: float, reg_alpha: float) -> float:
    """Twice the loss that a leaf of the given weight takes away: ``-(2Gw + (H + λ)w² + 2α|w|)`` of eq. 2.4."""
    return -(2.0 * gradient * weight + (hessian + reg_lambda) * weight * weight + 2.0 * reg_alpha * abs(weight))


@_shared
def leaf_score(gradient: float, hessian: float, reg_lambda: float, reg_alpha: float, max_delta_step: float) -> float:
    """Twice the loss that the best leaf takes away: ``G²/(H + λ)`` of eq. 2.6, unless the weight is limited."""
    if max_delta_step > 0.0:
        weight = leaf_weight(gradient, hessian, reg_lambda, reg_alpha, max_delta_step, -UNBOUNDED, UNBOUNDED)
        return weight_score(gradient, hessian, weight, reg_lambda, reg_alpha)
    if hessian <= 0.0 or hessian + reg_lambda <= 0.0:
        return 0.0
    shrunk = soft_threshold(gradient, reg_alpha)
    return shrunk * shrunk / (hessian + reg_lambda)


@_shared
def split_gain(
    left_gradient: float,
    left_hessian: float,
    right_gradient: float,
    right_hessian: float,
    reg_lambda: float,
    reg_alpha: float,
    max_delta_step: float,
    min_child_weight: float,
    monotone: int,
    lower: float,
    upper: float,
) -> float:
    """Gain of a split: the scores of both children less that of their parent; −inf where the split is forbidden,
    as it is if a child has less than `min_child_weight` of Hessian or no curvature at all.

    That is the bracket of eq. 2.7 *without* its factor ½ and before γ is taken off: the number that XGBoost
    compares with `gamma` and reports. `monotone` is 1 where the right weight may not be below the left one, −1
    for the opposite, 0 for no constraint; `lower` and `upper` bound the weights of the node's subtree.
    """
    least = left_hessian if left_hessian < right_hessian else right_hessian
    if least < min_child_weight or least <= 0.0:
        return -math.inf
    if lower == -UNBOUNDED and upper == UNBOUNDED and monotone == 0:
        return (
            leaf_score(left_gradient, left_hessian, reg_lambda, reg_alpha, max_delta_step)
            + leaf_score(right_gradient, right_hessian, reg_lambda, reg_alpha, max_delta_step)
            - leaf_score(
                left_gradient + right_gradient, left_hessian + right_hessian, reg_lambda, reg_alpha, max_delta_step
            )
        )
    left = leaf_weight(left_gradient, left_hessian, reg_lambda, reg_alpha, max_delta_step, lower, upper)
    right = leaf_weight(right_gradient, right_hessian, reg_lambda, reg_alpha, max_delta_step, lower, upper)
    if (monotone > 0 and left > right) or (monotone < 0 and left < right):
        return -math.inf
    gradient, hessian = left_gradient + right_gradient, left_hessian + right_hessian
    parent = leaf_weight(gradient, hessian, reg_lambda, reg_alpha, max_delta_step, lower, upper)
    return (
        weight_score(left_gradient, left_hessian, left, reg_lambda, reg_alpha)
        + weight_score(right_gradient, right_hessian, right, reg_lambda, reg_alpha)
        - weight_score(gradient, hessian, parent, reg_lambda, reg_alpha)
    )


@_shared
def child_bounds(
    monotone: int, left_weight: float, right_weight: float, lower: float, upper: float
) -> tuple[float, float, float, float]:
    """Bounds of the left and the right subtree's weights, lower and upper of each: on its side of the mean."""
    middle = 0.5 * (left_weight + right_weight)
    if monotone > 0:
        return lower, middle, middle, upper
    if monotone < 0:
        return middle, upper, lower, middle
    return lower, upper, lower, upper
