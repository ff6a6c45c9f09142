"""Mutants of training: noise, clipping, sampling."""

from mutant import Mutant

TRAINING = (
    Mutant(
        "a tenth less noise",
        "trainables/gradients/noise.py",
        ".mul_(scale)",
        ".mul_(0.9 * scale)",
        ("tests/unit/trainables/methods/test_noise_power.py::test_secret_noise[dtype1-cpu]",),
        "the noise of every step on the CPU",
    ),
    Mutant(
        "one per cent less noise",
        "trainables/gradients/noise.py",
        "dtype).mul_(scale)",
        "dtype).mul_(0.99 * scale)",
        ("tests/unit/trainables/methods/test_noise_power.py::test_secret_noise[dtype1-cpu]",),
        "the same, by the least that a test must see",
    ),
    Mutant(
        "noise from a known seed",
        "trainables/gradients/noise.py",
        "secret_numpy_generator() if device",
        "np.random.default_rng(0) if device",
        ("tests/unit/trainables/gradients/test_noise.py::test_noise_ignores_every_known_seed",),
        "whoever knows the seed subtracts the noise",
    ),
    Mutant(
        "noise that repeats",
        "trainables/gradients/noise.py",
        "values = self._numpy.standard_normal(tensor.numel(), dtype=dtype)",
        (
            "half = self._numpy.standard_normal((tensor.numel() + 1) // 2, dtype=dtype)\n"
            "            values = np.tile(half, 2)[: tensor.numel()]"
        ),
        ("tests/unit/trainables/methods/test_noise_power.py::test_secret_noise[dtype1-cpu]",),
        "two values with the same noise: their difference is exact",
    ),
    Mutant(
        "less noise in a noisy accuracy",
        "trainables/gradients/noise.py",
        "noise_multiplier * float(",
        "0.99 * noise_multiplier * float(",
        (
            "tests/unit/trainables/methods/test_noise_power.py::test_the_score_that_leaves_a_trial_has_the_noise_that_it_is_charged",
        ),
        "noisy validation scores",
    ),
    Mutant(
        "less noise in a step of DP-SGD",
        "trainables/methods/dp_sgd.py",
        "release(t, event.noise_multiplier, bound",
        "release(t, 0.99 * event.noise_multiplier, bound",
        ("tests/unit/trainables/methods/test_noise_power.py::test_a_step_of_dp_sgd[opacus]",),
        "every step but AdaMix's",
    ),
    Mutant(
        "rounding before the noise",
        "trainables/gradients/noise.py",
        "return total.add_(noise)",
        "return total.float().add_(noise.float())",
        (
            "tests/unit/trainables/methods/test_noise_power.py::test_sums_are_rounded_after_the_noise_is_in[DPSGD]",
        ),
        "the private sum rounds by itself (DECISIONS 39)",
    ),
    Mutant(
        "noise of too few digits",
        "trainables/gradients/noise.py",
        "self.like(total, noise_multiplier * bound)",
        "self.like(total.float(), noise_multiplier * bound)",
        (
            "tests/unit/trainables/methods/test_noise_power.py::test_sums_are_rounded_after_the_noise_is_in[DPSGD]",
        ),
        "the low digits of the sum have no noise",
    ),
    Mutant(
        "noise of one head for many",
        "trainables/methods/dp_sgd.py",
        "noise_bound(max_grad_norm, num_private, joint=joint)",
        "noise_bound(max_grad_norm, num_private)",
        ("tests/unit/trainables/methods/test_noise_power.py::test_a_step_of_many_heads",),
        "M heads move sqrt(M) times as far",
    ),
    Mutant(
        "a larger clipping norm than the noise is for",
        "trainables/methods/dp_sgd.py",
        "sums = engine.clipped_gradient_sum(self._inputs, self._labels, rows, max_grad_norm)",
        "sums = self._engine.clipped_gradient_sum(self._inputs, self._labels, rows, 1.1 * max_grad_norm)",
        (
            "tests/unit/trainables/methods/test_dp_sgd.py::test_one_step_is_the_clipped_sum_plus_noise_over_declared_numbers",
        ),
        "the sensitivity of a step",
    ),
    Mutant(
        "a count that nothing pays for",
        "trainables/methods/extras/quantile.py",
        "share = noise_multiplier / (2 * count_noise)",
        "share = 0 * noise_multiplier / (2 * count_noise)",
        (
            "tests/unit/trainables/methods/extras/test_quantile.py::test_one_record_moves_gradients_and_count_by_the_joint_bound[dp_sgd-given1]",
            "tests/unit/trainables/methods/extras/test_quantile.py::test_gradients_and_count_cost_what_the_event_says[2.0]",
        ),
        "the count is released beside the gradients",
    ),
    Mutant(
        "a count that moves further than its noise is for",
        "trainables/methods/extras/quantile.py",
        "return noise_multiplier * self.joint(noise_multiplier) / self._count_noise",
        "return 1.1 * noise_multiplier * self.joint(noise_multiplier) / self._count_noise",
        (
            "tests/unit/trainables/methods/extras/test_quantile.py::test_one_record_moves_gradients_and_count_by_the_joint_bound[dp_sgd-given1]",
        ),
        "the sensitivity of a count is a half, in its own unit",
    ),
    Mutant(
        "rows that are no examples in a count",
        "trainables/gradients/linear_head.py",
        "norms[count:] = math.inf",
        "pass",
        (
            "tests/unit/trainables/methods/extras/test_quantile.py::test_rows_that_fill_a_chunk_up_are_not_counted",
        ),
        "how many there are depends on who is in the batch",
    ),
    Mutant(
        "a column of bands that moves further than its noise is for",
        "trainables/methods/extras/bands.py",
        "root / np.linalg.norm(root)",
        "root / np.linalg.norm(root[:-1])",
        (
            "tests/unit/trainables/methods/extras/test_bands.py::test_no_way_of_taking_part_moves_a_round_by_more_than_its_bound[4-6]",
        ),
        "each record adds a column, whose norm is its sensitivity",
    ),
    Mutant(
        "records of all groups in each step of a round",
        "trainables/methods/extras/bands.py",
        "return rows[self._now[rows] == step % self.bands]",
        "return rows",
        (
            "tests/unit/trainables/methods/extras/test_bands.py::test_every_record_takes_part_in_one_group_of_its_round",
        ),
        "a round is charged once for each record",
    ),
    Mutant(
        "noise of bands that goes on with a checkpoint",
        "trainables/methods/dp_sgd.py",
        "self._rounds.forget()",
        "pass",
        (
            "tests/unit/trainables/methods/extras/test_bands.py::test_a_trial_that_goes_on_has_forgotten_noise_and_groups",
        ),
        "groups come again before b steps have passed",
    ),
    Mutant(
        "groups that stay after half a round",
        "trainables/methods/extras/bands.py",
        "self._groups, self._now = None, groups",
        "self._now = groups",
        (
            "tests/unit/trainables/methods/extras/test_bands.py::test_an_unfinished_or_short_round_is_followed_by_other_groups",
        ),
        "the same group comes again before b steps have passed",
    ),
    Mutant(
        "views by place in the batch",
        "trainables/methods/extras/views.py",
        "sums = (bits.long() * self._multipliers).sum(dim=1).cpu().numpy().view(np.uint64)",
        "sums = np.arange(len(bits), dtype=np.uint64)",
        (
            "tests/unit/trainables/methods/extras/test_views.py::test_views_depend_on_the_image_the_step_and_the_seed_alone",
        ),
        "one example less would change the views of all after it",
    ),
    Mutant(
        "the true size of a batch as divisor",
        "trainables/methods/dp_sgd.py",
        "/ self._expected_batch for total in released",
        "/ max(1, len(rows)) for total in released",
        (
            "tests/unit/trainables/methods/test_dp_sgd.py::test_one_step_is_the_clipped_sum_plus_noise_over_declared_numbers",
        ),
        "it is private",
    ),
    Mutant(
        "batches from a known seed",
        "trainables/methods/dp_sgd.py",
        "self._batches = secret_numpy_generator()",
        "self._batches = __import__('numpy').random.default_rng(0)",
        ("tests/unit/trainables/methods/test_dp_sgd.py::test_batches_ignore_every_known_seed",),
        "amplification needs batches that nobody knows",
    ),
    Mutant(
        "exact figures of private layers",
        "trainables/methods/dp_sgd.py",
        'if self._data.records != "public":',
        'if self._data.records == "nothing":',
        ("tests/unit/trainables/gradients/test_layer_noise.py::test_private_records_are_refused",),
        "exact norms of private gradients",
    ),
    Mutant(
        "batches twice as often",
        "trainables/methods/classifier.py",
        "generator.random(len(self._rows)) < sample_rate",
        "generator.random(len(self._rows)) < 2 * sample_rate",
        ("tests/unit/trainables/methods/test_dp_sgd.py::test_batches_are_poisson",),
        "the sampling rate that is charged",
    ),
    Mutant(
        "batches of a fixed size",
        "trainables/methods/classifier.py",
        "return self._rows[generator.random(len(self._rows)) < sample_rate]",
        "return generator.permutation(self._rows)[: round(sample_rate * len(self._rows))]",
        ("tests/unit/trainables/methods/test_dp_sgd.py::test_batches_are_poisson",),
        "Poisson sampling, which is what is accounted",
    ),
    Mutant(
        "the true number of records in the expected batch",
        "trainables/methods/classifier.py",
        "self._expected_batch = self._sample_rate * num_private_of(hparams, data.info.num_private)",
        'self._expected_batch = self._sample_rate * len(data.parts["private"][1])',
        (
            "tests/unit/trainables/methods/test_dp_sgd.py::test_one_step_is_the_clipped_sum_plus_noise_over_declared_numbers",
        ),
        "it is private",
    ),
    Mutant(
        "clip factors above C",
        "trainables/gradients/clipping.py",
        "factors = max_grad_norm / norms.clamp(min=max_grad_norm)",
        "factors = 1.01 * max_grad_norm / norms.clamp(min=max_grad_norm)",
        (
            "tests/unit/trainables/gradients/test_linear_head.py::test_front_and_half_precision[False-shape0-dtype1]",
        ),
        "the sensitivity of every engine",
    ),
    Mutant(
        "subnormal clip factors",
        "trainables/gradients/clipping.py",
        "norms.isfinite() & (factors >= torch.finfo(factors.dtype).tiny)",
        "norms.isfinite()",
        (
            "tests/unit/trainables/gradients/test_linear_head.py::test_no_norm_however_large_passes_the_bound[0.001]",
        ),
        "rounded up, they let an example add more than C",
    ),
    Mutant(
        "norms added up in float32",
        "trainables/gradients/clipping.py",
        "if whole == 0 or size == _ADDED_AT_ONCE:",
        "if True:",
        (
            "tests/unit/trainables/gradients/test_row_norms.py::test_row_norms_are_those_in_double_precision[constant-6144]",
        ),
        "a norm that is too small clips too little",
    ),
    Mutant(
        "a head's norm without its bias",
        "trainables/gradients/linear_head.py",
        ("            if bias is not None:\n                squares += 1.0"),
        ("            if bias is None:\n                squares += 1.0"),
        (
            "tests/unit/trainables/gradients/test_linear_head.py::test_front_and_half_precision[False-shape0-dtype1]",
        ),
        "the gradient of the bias is clipped too",
    ),
    Mutant(
        "many heads' norms without biases",
        "trainables/gradients/linear_head.py",
        "row_norms(x).square_().add_(1.0)",
        "row_norms(x).square_().add_(0.0)",
        (
            "tests/unit/trainables/gradients/test_linear_head.py::test_one_record_moves_the_sum_by_at_most_the_bound[dtype0]",
        ),
        "the gradient of the bias is clipped too",
    ),
    Mutant(
        "a broken record in a head's sum",
        "trainables/gradients/linear_head.py",
        "residual.masked_fill_(broken, 0.0)",
        "pass",
        (
            "tests/unit/trainables/gradients/test_per_example.py::test_one_bad_example_adds_at_most_the_bound",
        ),
        "one infinite value tells of its record",
    ),
    Mutant(
        "automatic clipping above C",
        "trainables/gradients/clipping.py",
        "return exact_factors(max_grad_norm / (norms + gamma), norms)",
        "return exact_factors(max_grad_norm * 1.1 / (norms + gamma), norms)",
        (
            "tests/unit/trainables/gradients/test_bias_engine.py::test_automatic_factors_of_broken_norms_are_zero",
        ),
        "the sensitivity under clip.rule: automatic",
    ),
    Mutant(
        "clip factors as a rule gives them",
        "trainables/gradients/bias_engine.py",
        ".minimum(max_grad_norm / norms)",
        "",
        (
            "tests/unit/trainables/gradients/test_bias_engine.py::test_no_example_adds_more_than_the_bound[<lambda>]",
        ),
        "no rule may pass C / norm",
    ),
    Mutant(
        "biases left out of the norm",
        "trainables/gradients/bias_engine.py",
        "parts = [row_norms(self.biases)]",
        "parts = [0 * row_norms(self.biases)]",
        (
            "tests/unit/trainables/gradients/test_bias_engine.py::test_engine_agrees_with_a_loop_over_examples[vit_tiny_patch16_224-options1-32-3]",
        ),
        "the norm is that of all that trains",
    ),
    Mutant(
        "a broken example in a sum",
        "trainables/gradients/layer_gradients.py",
        "if isinstance(sample, torch.Tensor) and not is_whole:",
        "if False and not is_whole:",
        (
            "tests/unit/trainables/gradients/test_per_example.py::test_one_bad_example_adds_at_most_the_bound[inf-tanh_cnn]",
        ),
        "one infinite value tells of its record",
    ),
    Mutant(
        "bfloat16 without a look at places",
        "trainables/gradients/check.py",
        "if forward.is_rounded:",
        "if False:",
        (
            "tests/unit/trainables/devices/test_bfloat16.py::test_a_network_whose_rows_round_by_their_place_is_refused",
        ),
        "a row that moves by 2^-8 moves the sum by more than its own bound",
    ),
    Mutant(
        "TensorFloat-32 within a clipped sum",
        "trainables/devices/numerics.py",
        "_set(_FULL)",
        "pass",
        (
            "tests/unit/trainables/devices/test_numerics.py::test_the_whole_clipped_sum_is_in_full_float32",
        ),
        "a norm of 10 bits bounds nothing",
    ),
    Mutant(
        "weight products left out of the norm",
        "trainables/gradients/layer_gradients.py",
        "norm, size = sample.norms()",
        "norm, size = (0 * value for value in sample.norms())",
        (
            "tests/unit/trainables/gradients/test_weight_products.py::test_an_example_that_is_not_finite_adds_zero_and_hurts_no_other[input-inf]",
        ),
        "the norm is that of all that trains",
    ),
    Mutant(
        "less noise in AdaMix",
        "trainables/methods/adamix/adamix.py",
        "total, event.noise_multiplier, bound",
        "total, 0.99 * event.noise_multiplier, bound",
        (
            "tests/unit/trainables/methods/test_noise_power.py::test_a_step_of_adamix_in_the_public_subspace",
        ),
        "its steps and those of its baselines",
    ),
    Mutant(
        "AdaMix's noise for another clipping norm",
        "trainables/methods/adamix/adamix.py",
        "noise_bound(max_grad_norm, self._num_private)",
        'noise_bound(float(hparams["clip.max_grad_norm"]), self._num_private)',
        (
            "tests/unit/trainables/methods/test_noise_power.py::test_a_step_of_adamix_without_projection",
        ),
        "the noise is relative to the norm that clips",
    ),
    Mutant(
        "AdaMix rounds before the noise",
        "trainables/methods/adamix/adamix.py",
        "            total, event.noise_multiplier",
        "            total.to(self._weight), event.noise_multiplier",
        (
            "tests/unit/trainables/methods/test_noise_power.py::test_adamix_rounds_its_sum_after_the_noise_is_in",
        ),
        "the private sum rounds by itself (DECISIONS 39)",
    ),
    Mutant(
        "AdaMix's sum unclipped",
        "trainables/methods/adamix/noisy_gd.py",
        "if max_grad_norm is not None:",
        "if max_grad_norm is None:",
        (
            "tests/unit/trainables/methods/adamix/test_noisy_gd.py::test_sums_and_norms_equal_autograd[1-dtype1]",
        ),
        "the sensitivity of a step",
    ),
    Mutant(
        "public records unclipped where they are trained on",
        "trainables/methods/adamix/adamix.py",
        "self._public.gradient_sum(self._weight, max_grad_norm)[0]",
        "self._public.gradient_sum(self._weight)[0]",
        (
            "tests/unit/trainables/methods/adamix/test_adamix.py::test_public_records_that_are_trained_on_as_private_are_clipped",
        ),
        "fully_private protects them too",
    ),
    Mutant(
        "less noise in the normalisation",
        "trainables/methods/scatternet/scatternet.py",
        "release(total, event.noise_multiplier, bound",
        "release(total, 0.99 * event.noise_multiplier, bound",
        ("tests/unit/trainables/methods/test_noise_power.py::test_channel_means_and_mean_squares",),
        "both statistics of normalize.private_data",
    ),
    Mutant(
        "channel statistics unclipped",
        "trainables/methods/scatternet/normalize.py",
        "total += clip_factors(norms, max_norm) @ means",
        "total += means.sum(dim=0)",
        (
            "tests/unit/trainables/methods/scatternet/test_normalize.py::test_sum_is_algorithm_2[1-shape0]",
        ),
        "their sensitivity",
    ),
    Mutant(
        "a broken record in the normalisation",
        "trainables/methods/scatternet/normalize.py",
        "means[~norms.isfinite()] = 0.0",
        "pass",
        (
            "tests/unit/trainables/methods/scatternet/test_normalize.py::test_a_record_moves_the_sum_by_at_most_the_bound[dtype0-inf]",
        ),
        "one infinite value tells of its record",
    ),
    Mutant(
        "the true number of records in the normalisation",
        "trainables/methods/scatternet/on_features.py",
        "total /= num_private_of(self._hparams, self._data.info.num_private)",
        "total /= len(self._rows)",
        (
            "tests/unit/trainables/methods/scatternet/test_scatternet.py::test_statistics_are_the_noisy_ones_of_algorithm_2",
        ),
        "it is private",
    ),
    Mutant(
        "noisy scores for the best of many heads",
        "trainables/methods/scatternet/scatternet.py",
        'if context.validation == "noisy":',
        "if False:",
        (
            "tests/unit/trainables/methods/scatternet/test_scatternet.py::test_heads_that_are_refused",
        ),
        "a choice by exact scores that no noise covers",
    ),
    Mutant(
        "less noise in DP-PCA",
        "trainables/methods/active_learning/dp_pca.py",
        "noise[above] = noise_multiplier *",
        "noise[above] = 0.99 * noise_multiplier *",
        ("tests/unit/trainables/methods/test_noise_power.py::test_the_matrix_of_dp_pca",),
        "the matrix that near_private asks for",
    ),
    Mutant(
        "DP-PCA's noise in one half only",
        "trainables/methods/active_learning/dp_pca.py",
        "return mirrored(torch.from_numpy(noise))",
        "return torch.from_numpy(noise)",
        ("tests/unit/trainables/methods/test_noise_power.py::test_the_matrix_of_dp_pca",),
        "the other half is the exact matrix",
    ),
    Mutant(
        "rows of DP-PCA beyond norm 1",
        "trainables/methods/second_moments.py",
        "torch.where(largest * size > 1,",
        "torch.where(largest * size > 1.5,",
        (
            "tests/unit/trainables/methods/active_learning/test_dp_pca.py::test_the_moment_is_that_of_clipped_rows_in_blocks_of_any_size[dtype1]",
        ),
        "its sensitivity",
    ),
    Mutant(
        "a covariance with less noise beside its diagonal",
        "trainables/methods/least_squares/statistics.py",
        "= vector / _weights(size, vector)",
        "= vector / _weights(size, vector).square()",
        (
            "tests/unit/trainables/methods/test_noise_power.py::test_the_covariance_of_least_squares",
        ),
        "the release of least squares, and with it the covariance itself",
    ),
    Mutant(
        "a triangle that is longer than its matrix",
        "trainables/methods/least_squares/statistics.py",
        "beside = like.new_tensor(math.sqrt(2))",
        "beside = like.new_tensor(2.0)",
        (
            "tests/unit/trainables/methods/least_squares/test_statistics.py::test_one_record_moves_each_sum_by_exactly_1_over_all_neighbors",
        ),
        "its sensitivity",
    ),
    Mutant(
        "records of least squares that are not divided by their norms",
        "trainables/methods/second_moments.py",
        "unit = unit / torch.linalg.vector_norm(",
        "unit = unit + 0 * torch.linalg.vector_norm(",
        (
            "tests/unit/trainables/methods/least_squares/test_statistics.py::test_one_record_moves_each_sum_by_exactly_1_over_all_neighbors",
        ),
        "the sensitivity of every release of least squares",
    ),
    Mutant(
        "a covariance that costs nothing",
        "trainables/methods/least_squares/knobs.py",
        "targets = Gaussian(noise_multiplier / math.sqrt(1 - share))",
        "targets = Gaussian(noise_multiplier)",
        (
            "tests/unit/trainables/methods/least_squares/test_least_squares.py::test_the_closed_form_is_two_gaussians_that_are_together_one",
        ),
        "the noise that both sums need together",
    ),
    Mutant(
        "less noise in the votes",
        "trainables/methods/active_learning/nearest_votes.py",
        "generator.laplace(0.0, scale,",
        "generator.laplace(0.0, 0.99 * scale,",
        (
            "tests/unit/trainables/methods/test_noise_power.py::test_the_votes_of_near_private[all-1]",
        ),
        "the counts of near_private",
    ),
    Mutant(
        "the sensitivity of top_k as in the paper",
        "trainables/methods/active_learning/nearest_votes.py",
        '"top_k": 2}',
        '"top_k": 1}',
        (
            "tests/unit/trainables/methods/test_noise_power.py::test_the_votes_of_near_private[top_k-2]",
        ),
        "a record that enters drives another out",
    ),
    Mutant(
        "votes without their sensitivity",
        "trainables/methods/active_learning/label_choice.py",
        "event.scale * votes.SENSITIVITY[kind]",
        "event.scale",
        (
            "tests/unit/trainables/methods/test_noise_power.py::test_the_votes_of_near_private[top_k-2]",
        ),
        "noise for one count where two move",
    ),
    Mutant(
        "an epsilon of shuffled batches",
        "trainables/methods/non_private.py",
        "Plan((EventRun(NonPrivateEvent(), count=num_steps_of(hparams, sample_rate)),))",
        "Plan(())",
        (
            "tests/unit/trainables/methods/test_shuffled.py::test_no_noise_buys_an_epsilon[rdp-1.0-shuffled-NonPrivate]",
        ),
        "training without a claim would look as if it were free",
    ),
    Mutant(
        "a fixed extra over the budget",
        "trainables/methods/active_learning/private_query.py",
        "    if not cost <= budget.target_epsilon:",
        "    if not cost <= 2 * budget.target_epsilon:",
        (
            "tests/unit/trainables/methods/active_learning/test_private_query.py::test_a_fixed_extra_is_never_over_the_budget[sum]",
        ),
        "near_private asks more than its trial may spend",
    ),
)
