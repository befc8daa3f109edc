//! The numbers that fit best: linear equations, robust least squares, and a search that needs no derivative.

/// Rounds of reweighting.
const ROUNDS: usize = 20;
/// Of the search: the first step, as a share, and the last.
const STEPS: (f64, f64) = (0.2, 1e-4);

/// Solves linear equations; unknowns that nothing tells of are 0.
pub fn solve<const N: usize>(mut a: [[f64; N]; N], mut b: [f64; N]) -> [f64; N] {
    for at in 0..N {
        let best = (at..N).max_by(|x, y| a[*x][at].abs().total_cmp(&a[*y][at].abs()));
        let best = best.unwrap_or(at);
        a.swap(at, best);
        b.swap(at, best);
        if a[at][at].abs() < 1e-300 {
            continue;
        }
        for row in 0..N {
            let factor = a[row][at] / a[at][at];
            if row != at && factor != 0.0 {
                (0..N).for_each(|column| a[row][column] -= factor * a[at][column]);
                b[row] -= factor * b[at];
            }
        }
    }
    std::array::from_fn(|at| {
        if a[at][at].abs() < 1e-300 {
            0.0
        } else {
            b[at] / a[at][at]
        }
    })
}

/// Weights by which `rows` come nearest to `values`, as shares of these and without regard to outliers; the first `positive` of
/// them are not negative. What rows do not tell apart is shared evenly.
pub fn least_squares<const N: usize>(
    rows: &[[f64; N]],
    values: &[f64],
    positive: usize,
) -> [f64; N] {
    let (mut found, mut left_out) = ([0.0; N], [false; N]);
    let mut weights: Vec<f64> = values.iter().map(|value| value.powi(-2)).collect();
    for _ in 0..ROUNDS {
        loop {
            let (mut a, mut b) = ([[0.0; N]; N], [0.0; N]);
            for ((row, value), weight) in rows.iter().zip(values).zip(&weights) {
                for x in (0..N).filter(|x| !left_out[*x]) {
                    b[x] += weight * row[x] * value;
                    for y in (0..N).filter(|y| !left_out[*y]) {
                        a[x][y] += weight * row[x] * row[y];
                    }
                }
            }
            (1..N).for_each(|x| a[x][x] *= 1.0 + 1e-4);
            found = solve(a, b);
            match (0..positive).find(|x| found[*x] < 0.0) {
                Some(x) => left_out[x] = true,
                None => break,
            }
        }
        let off = |(row, value): (&[f64; N], &f64)| {
            let made: f64 = row.iter().zip(found).map(|(x, weight)| x * weight).sum();
            1.0 - made / value
        };
        let off: Vec<f64> = rows.iter().zip(values).map(off).collect();
        let mut sizes: Vec<f64> = off.iter().map(|off| off.abs()).collect();
        sizes.sort_by(f64::total_cmp);
        let usual = 3.0 * sizes.get(sizes.len() / 2).copied().unwrap_or(1.0).max(1e-9);
        weights = off
            .iter()
            .zip(values)
            .map(|(off, value)| 1.0 / (1.0 + (off / usual).powi(2)) / value.powi(2))
            .collect();
    }
    found
}

/// Positive numbers at which `cost` is least, near `start`.
pub fn descend<const N: usize>(start: [f64; N], cost: &dyn Fn([f64; N]) -> f64) -> [f64; N] {
    let (mut at, mut least, mut step) = (start, cost(start), STEPS.0);
    while step > STEPS.1 {
        let before = least;
        // Along each number, and along each two against each other.
        let ways = (0..N).flat_map(|x| (0..N).map(move |y| (x, y)));
        for (x, y) in ways {
            for sign in [1.0, -1.0] {
                let mut next = at;
                next[x] *= (sign * step).exp();
                if y != x {
                    next[y] *= (-sign * step).exp();
                }
                let there = cost(next);
                if there < least {
                    (at, least) = (next, there);
                }
            }
        }
        if least >= before * (1.0 - 1e-6) {
            step /= 2.0;
        }
    }
    at
}
