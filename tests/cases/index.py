"""Which tests show each real-world failure case, O-01 to O-67; docs/cases.md has what was chosen."""

from __future__ import annotations

from typing import Final

CASES: Final[dict[str, tuple[str, ...]]] = {
    # A. Keys, locks, records
    "O-01": (
        "tests/redis/test_leases.py::test_o01_smallest_lease_and_an_answer_after_twelve_seconds_are_one_hit",
        "tests/e2e/test_crashes.py::test_o01_lease_shorter_than_the_call_is_renewed",
    ),
    "O-02": (
        "tests/redis/test_leases.py::test_o02_record_deleted_from_outside_never_makes_a_third_hit",
        "tests/redis/test_leases.py::test_zombies_late_refusal_does_not_end_the_run_of_its_heir",
    ),
    "O-03": ("tests/redis/test_cases.py::test_o03_waiters_read_the_result_instead_of_running_again",),
    "O-04": (
        "tests/e2e/test_same_key.py::test_o04_other_amount_in_flight_conflicts_at_once",
        "tests/e2e/test_same_key.py::test_o04_conflict_after_the_end_carries_the_recorded_knowledge",
    ),
    "O-05": (
        "tests/e2e/test_same_key.py::test_o05_honest_repeat_is_no_conflict_and_is_forwarded_byte_for_byte",
        "tests/e2e/test_same_key.py::test_o05_honest_repeat_on_a_stored_route_is_not_sent",
    ),
    "O-06": ("tests/e2e/test_same_key.py::test_o06_large_amounts_that_differ_by_one_conflict",),
    "O-07": (
        "tests/e2e/test_keys.py::test_o07_made_key_is_the_same_whatever_else_changes",
        "tests/e2e/test_keys.py::test_o07_without_injection_a_missing_key_is_refused",
    ),
    "O-08": (
        "tests/e2e/test_keys.py::test_o08_made_key_and_bytes_are_equal_in_every_attempt_and_stored_before_the_first",
    ),
    "O-09": ("tests/e2e/test_same_key.py::test_o09_transient_500_is_not_pinned_to_the_key",),
    "O-10": ("tests/e2e/test_same_key.py::test_o10_key_belongs_to_its_endpoint",),
    "O-11": (
        "tests/e2e/test_crashes.py::test_o11_repeat_after_a_crash_waits_at_most_for_the_lease",
        "tests/e2e/test_crashes.py::test_o11_doubt_after_a_crash_is_resolved_without_a_caller",
    ),
    "O-12": (
        "tests/e2e/test_hangups.py::test_o12_two_hundred_callers_hang_up_at_any_moment_and_their_repeats_are_answered",
        "tests/security/test_impostors.py::test_tls_caller_that_says_goodbye_early_does_not_stop_its_payment",
    ),
    "O-13": (
        "tests/e2e/test_same_key.py::test_o13_stored_replay_is_the_first_answer",
        "tests/e2e/test_same_key.py::test_o13_forwarded_repeat_is_the_second_answer_unchanged",
    ),
    "O-14": (
        "tests/e2e/test_keys.py::test_o14_lawful_key_is_forwarded_unchanged",
        "tests/e2e/test_keys.py::test_o14_other_keys_are_refused_by_name_and_nothing_is_sent",
        "tests/e2e/test_keys.py::test_o14_long_keys_with_one_beginning_are_no_one_key",
    ),
    "O-15": (
        "tests/e2e/test_unknown.py::test_o15_time_out_is_unknown_and_looked_up_on_the_schedule_until_it_is_known",
    ),
    "O-16": (
        "tests/e2e/test_same_key.py::test_o16_key_that_was_forgotten_is_forwarded_and_the_platform_decides",
    ),
    # B. Proxy and HTTP/1.1
    "O-17": ("tests/e2e/test_phases.py::test_o17_post_onto_a_connection_that_is_being_closed_is_repeated",),
    "O-18": ("tests/e2e/test_answers.py::test_o18_post_outside_the_guarded_routes_is_sent_once",),
    "O-19": (
        "tests/e2e/test_carrying.py::test_o19_target_arrives_byte_for_byte",
        "tests/e2e/test_carrying.py::test_o19_guarded_target_with_a_query_arrives_byte_for_byte",
        "tests/wire/test_fidelity.py::test_row_arrives_as_it_was_sent",
    ),
    "O-20": ("tests/e2e/test_carrying.py::test_o20_hop_by_hop_fields_stay_on_their_hop",),
    "O-21": ("tests/e2e/test_carrying.py::test_o21_repeated_fields_stay_apart_and_in_order",),
    "O-22": (
        "tests/e2e/test_carrying.py::test_o22_request_with_two_readings_is_refused_and_its_connection_closed",
        "tests/wire/test_corpus.py::test_hostile_request_gets_one_refusal_and_reaches_nobody",
    ),
    "O-23": (
        "tests/e2e/test_answers.py::test_o23_contradictory_framing_is_never_a_cut_success",
        "tests/wire/test_corpus.py::test_hostile_answer_to_a_payment_is_never_believed_too_far",
        "tests/wire/test_corpus.py::test_hostile_answer_to_a_streamed_call_stays_with_it",
    ),
    "O-24": ("tests/e2e/test_answers.py::test_o24_short_body_is_never_a_whole_answer",),
    "O-25": (
        "tests/e2e/test_hangups.py::test_o25_early_refusal_of_a_large_body_reaches_the_caller",
        "tests/e2e/test_hangups.py::test_o25_reset_instead_of_a_refusal_is_unknown",
    ),
    "O-26": ("tests/e2e/test_carrying.py::test_o26_caller_that_waits_for_100_gets_it_at_once",),
    "O-27": ("tests/e2e/test_carrying.py::test_o27_answers_without_a_body_do_not_wait_for_one",),
    "O-28": ("tests/e2e/test_carrying.py::test_o28_empty_post_says_that_it_is_empty",),
    "O-29": ("tests/e2e/test_carrying.py::test_o29_compressed_answer_passes_unopened_and_is_understood",),
    "O-30": (
        "tests/e2e/test_carrying.py::test_o30_no_open_proxy",
        "tests/security/test_trust.py::test_nothing_but_the_configured_platform_is_ever_dialled",
    ),
    "O-31": (
        "tests/e2e/test_answers.py::test_o31_redirect_is_not_followed_nor_handed_over",
        "tests/e2e/test_answers.py::test_o31_redirect_of_a_read_passes_unchanged",
    ),
    "O-32": ("tests/e2e/test_carrying.py::test_o32_no_cookie_of_one_caller_reaches_another_nor_a_lookup",),
    "O-33": (
        "tests/e2e/test_phases.py::test_o33_certificate_of_another_name_is_not_executed_and_not_repeated",
        "tests/e2e/test_phases.py::test_o33_certificate_is_of_the_configured_name_whatever_host_the_caller_says",
        "tests/security/test_impostors.py::test_certificate_that_does_not_verify_ends_the_call_at_once_and_says_why",
    ),
    "O-34": ("tests/cases/test_o34.py::test_o34_change_of_address_is_followed_under_unbroken_traffic",),
    "O-35": (
        "tests/e2e/test_carrying.py::test_o35_hung_platform_leaves_no_connection_behind",
        "tests/wire/test_pressure.py::test_call_without_a_connection_in_time_is_not_sent_and_may_come_again",
    ),
    "O-36": ("tests/wire/test_pressure.py::test_o36_slow_senders_are_cut_and_hold_nobody_up",),
    "O-37": ("tests/e2e/test_carrying.py::test_o37_sizes_are_refused_by_name",),
    "O-38": ("tests/e2e/test_carrying.py::test_o38_latin_1_byte_in_a_header_stays",),
    "O-39": ("tests/e2e/test_carrying.py::test_o39_trailers_do_not_break_the_connection",),
    "O-40": (
        "tests/e2e/test_carrying.py::test_o40_events_pass_as_they_come_and_end_with_their_reader",
        "tests/cases/test_o40.py::test_o40_silent_stream_ends_with_its_reader",
    ),
    "O-41": (
        "tests/e2e/test_carrying.py::test_o41_localhost_is_either_family",
        "tests/wire/test_listener.py::test_name_of_two_addresses_is_served_on_both",
    ),
    "O-42": (
        "tests/e2e/test_keys.py::test_o42_order_number_becomes_one_safe_line",
        "tests/e2e/test_keys.py::test_k4_two_long_numbers_with_one_beginning_have_two_keys",
    ),
    # C. Retry behaviour
    "O-43": (
        "tests/e2e/test_waits.py::test_o43_advice_that_is_none_leaves_the_own_wait",
        "tests/e2e/test_waits.py::test_o43_seconds_replace_the_own_wait",
        "tests/e2e/test_waits.py::test_o43_date_is_measured_against_the_answers_own_date",
    ),
    "O-44": (
        "tests/e2e/test_waits.py::test_o44_wait_beyond_the_deadline_is_not_begun",
        "tests/e2e/test_waits.py::test_o44_wait_beyond_the_deadline_after_doubt_tells_unknown",
    ),
    "O-45": ("tests/e2e/test_waits.py::test_o45_many_attempts_never_overflow_their_wait",),
    "O-46": (
        "tests/e2e/test_answers.py::test_o46_operation_in_progress_is_waited_for",
        "tests/e2e/test_answers.py::test_o46_definite_refusals_pass_byte_for_byte",
    ),
    "O-47": ("tests/e2e/test_waits.py::test_o47_second_attempt_has_the_whole_body",),
    "O-48": ("tests/e2e/test_waits.py::test_o48_budget_bounds_the_retries_of_all_calls",),
    # D. Redis
    "O-49": ("tests/redis/test_cases.py::test_o49_no_waiter_misses_the_end_however_close_it_comes",),
    "O-50": ("tests/redis/test_cases.py::test_o50_flushed_scripts_are_not_noticed",),
    "O-51": ("tests/redis/test_cases.py::test_o51_demoted_primary_is_left_within_seconds",),
    "O-52": (
        "tests/redis/test_cases.py::test_o52_full_server_refuses_payments_lets_reads_pass_and_recovers",
    ),
    "O-53": ("tests/redis/test_cases.py::test_o53_store_that_may_evict_is_told_at_start_and_in_readiness",),
    "O-54": ("tests/redis/test_cases.py::test_o54_any_key_is_one_hit_in_a_cluster",),
    "O-55": ("tests/redis/test_cases.py::test_o55_liveness_is_the_processs_and_readiness_the_payments",),
    # E. SQLite
    "O-56": ("tests/e2e/test_store_down.py::test_o56_file_that_others_lock_delays_payments_and_fails_none",),
    "O-57": ("tests/stores/test_sqlite.py::test_reader_that_stays_starves_the_log_and_is_told",),
    "O-58": ("tests/e2e/test_store_down.py::test_o58_damaged_file_is_named_and_nothing_is_sent",),
    # F. Observability and operations
    "O-59": ("tests/e2e/test_carrying.py::test_o59_no_series_for_what_callers_send",),
    "O-60": ("tests/admin/test_fleet.py::test_counts_of_four_workers_only_grow_and_add_up",),
    "O-61": ("tests/e2e/test_carrying.py::test_o61_every_metric_is_there_before_anything_happened",),
    "O-62": (
        "tests/dashboards/test_boards.py::test_data_source_is_a_variable_in_every_place",
        "tests/dashboards/test_boards.py::test_question_is_promql_about_what_the_product_exports",
    ),
    "O-63": (
        "tests/e2e/test_running.py::test_o63_sigterm_lets_calls_in_flight_end_and_takes_no_new_ones",
        "tests/e2e/test_running.py::test_o63_readiness_fails_at_once_and_liveness_stays",
    ),
    "O-64": (
        "tests/security/test_nothing_kept.py::test_no_byte_of_a_card_or_a_credential_is_kept_on_any_path",
        "tests/e2e/test_secrets.py::test_o64_other_card_under_the_same_key_is_no_conflict",
    ),
    "O-65": (
        "tests/e2e/test_running.py::test_o65_wall_clock_that_steps_ends_no_wait_and_no_lease",
        "tests/e2e/test_running.py::test_o65_back_off_takes_its_time_whatever_the_wall_clock_does",
        "tests/e2e/test_running.py::test_o65_days_that_did_not_pass_drop_no_record",
    ),
    "O-66": ("tests/e2e/test_running.py::test_o66_broken_file_changes_nothing_and_is_told",),
    "O-67": ("tests/e2e/test_running.py::test_o67_proxy_variables_divert_nothing",),
}
