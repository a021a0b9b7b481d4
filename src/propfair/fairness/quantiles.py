"""Quantiles and tails, by scipy, which is imported when they are asked for: it takes longer than all of the theory."""


def student_quantile(alpha: float, df: float) -> float:
    """Student's t that is exceeded, in absolute value, with probability alpha."""
    from scipy import special

    return -float(special.stdtrit(df, alpha / 2))


def student_tails(t: float, df: float) -> float:
    """The probability that Student's t is larger in absolute value."""
    from scipy import special

    return 2 * float(special.stdtr(df, -t))


def normal_quantile(alpha: float) -> float:
    """The normal z that is exceeded, in absolute value, with probability alpha."""
    from scipy import special

    return -float(special.ndtri(alpha / 2))


def mid_p_limits(rate: float, num: float, alpha: float) -> tuple[float, float]:
    """The mid-P limits of a binomial rate: where what was seen, or more (or less) of it, has chance alpha / 2.

    What was seen itself counts half (Lancaster 1961). Neither the examples nor those that count need be whole numbers:
    the binomial tails are incomplete beta functions.

    >>> tuple(round(limit, 4) for limit in mid_p_limits(0.9, 10, 0.05))
    (0.5965, 0.995)
    """
    return 1 - _mid_p_upper(1 - rate, num, alpha), _mid_p_upper(rate, num, alpha)


def _mid_p_upper(rate: float, num: float, alpha: float) -> float:
    from scipy import optimize, special

    right, wrong = rate * num, (1 - rate) * num
    if wrong < 1e-9:
        return 1.0

    def excess(theta: float) -> float:
        fewer = special.betainc(wrong + 1, right, 1 - theta) if right > 1e-9 else 0.0
        return float(special.betainc(wrong, right + 1, 1 - theta) + fewer - alpha)

    return float(optimize.brentq(excess, rate, 1.0)) if excess(rate) > 0 else rate
