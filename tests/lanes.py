"""The lane of a case: `make test`, CI, or the night.

- `make test` runs every case that is neither `long` nor `nightly`.
- CI also runs the cases that are `long` and not `nightly`.
- `make nightly` runs the rest: every case that this module marks `nightly`.

The marker `long` stands at the test. Only this module marks cases as `nightly`, so a long case that nobody lists is in CI.
"""

from collections.abc import Iterable

TWINS = frozenset({"postgres", "pooled"})
"""Store kinds whose case repeats a case on SQLite."""
WHERE_ENGINES_DIFFER = (
    "concurrency",
    "conformance",
    "dispatch",
    "embedded",
    "faults",
    "leases",
    "migrations",
)
"""Folders whose PostgreSQL cases CI runs: there locks, types, isolation and failures decide."""

IN_CI = {
    "chats/test_storms.py": (
        "test_each_of_twenty_is_answered_or_refused_once_with_its_own_files[discord-queue",
        "test_each_of_twenty_is_answered_or_refused_once_with_its_own_files[slack-interrupt",
        "test_each_of_twenty_is_answered_or_refused_once_with_its_own_files[telegram",
        "test_each_of_twenty_is_answered_or_refused_once_with_its_own_files[web-steer",
    ),
    "e2e/test_acp_runners.py": (
        "test_a_message_is_answered_and_a_permission_is_given_by_a_person_through_a_restart",
        "test_a_killed_server_leaves_no_agent_and_the_message_is_answered_once_by_the_next",
    ),
    "e2e/test_answers_at_real_servers.py": (
        "test_each_question_gets_one_answer_by_somebody_who_may_and_every_surface_shows_it[4",
    ),
    "e2e/test_any_server_answers.py": (
        "test_a_webhook_is_taken_and_its_answer_fetched_at_any_server",
        "test_each_server_answers_in_the_openai_protocol",
    ),
    # Those that write rows or call parts below the public methods, which a change of the product can break.
    "e2e/test_benchmarks.py": (
        "test_an_unknown_benchmark_is_refused_by_name",
        *(
            f"test_a_benchmark_runs_to_its_end_and_prints_figures[{name}]"
            for name in ("chat_files", "dispatch_store", "inbox", "pages", "starting", "waking")
        ),
    ),
    "e2e/test_databases_taken_away.py": (
        "test_what_was_accepted_is_saved_and_nothing_more_is_accepted",
        "test_on_postgresql_a_database_that_is_dropped_is_told_as_gone",
    ),
    "e2e/test_demo.py": (
        "test_two_programs_do_six_tasks_meet_at_a_file_fail_once_and_ask_before_they_commit",
    ),
    "e2e/test_events.py": (
        "test_a_stream_is_resumed_after_a_kill_without_gap_or_double",
        "test_a_server_that_is_stopped_ends_its_streams_at_once",
    ),
    "e2e/test_gateway_server.py": (
        "test_a_channel_looks_itself_who_calls",
        "test_an_answer_streams_in_the_openai_protocol",
        "test_chats_are_answered_and_go_on_after_a_restart",
        "test_every_other_address_still_needs_the_token",
        "test_two_servers_cannot_share_one_bot",
    ),
    "e2e/test_hooks_and_guard.py": (
        "test_a_session_from_its_start_to_its_end",
        "test_commits_and_pushes_are_held_in_every_worktree",
    ),
    "e2e/test_lost_addresses.py": ("test_a_data_folder_of_a_store_on_postgresql_starts_on_no_new_store",),
    "e2e/test_lost_stores.py": (
        "test_a_data_folder_that_was_there_for_all_to_read_is_tightened",
        "test_a_server_that_was_killed_before_the_archive_was_told_starts",
        "test_a_store_that_was_lost_is_refused_with_three_ways_on",
        "test_on_postgresql_a_schema_that_is_gone_older_or_another_is_refused",
        "test_the_ways_on_lead_on",
    ),
    "e2e/test_merged_projects.py": ("test_killed_in_the_middle_all_of_it_is_done_or_nothing",),
    "e2e/test_page_in_a_browser.py": (
        "test_a_page_fits_every_width_in_light_and_dark_and_fetches_from_home_only",
        "test_hostile_mail_does_nothing_in_a_browser",
        "test_keys_find_what_needs_a_person_and_send_nothing",
    ),
    "e2e/test_pages_follow.py": (
        "test_a_change_shows_at_once_and_takes_nothing_from_the_reader",
        "test_a_key_answers_for_the_chosen_card_and_never_for_another",
        "test_who_is_logged_out_keeps_what_was_typed_and_sends_it_after_the_next_log_in",
    ),
    "e2e/test_postgres_settings.py": (
        "test_a_user_with_no_more_than_these_rights_serves",
        "test_tls_and_the_password_are_had_by_the_variables_of_postgresql",
    ),
    "e2e/test_prune.py": ("test_killed_in_the_middle_it_leaves_a_whole_store_and_goes_on",),
    "e2e/test_rebuild_commands.py": ("test_each_is_rebuilt_from_the_other",),
    "e2e/test_run_tokens.py": ("test_a_program_acts_as_its_agent_and_what_it_reserves_ends_with_its_run",),
    "e2e/test_runners.py": (
        "test_agents_of_the_configuration_file_are_run_and_not_when_it_names_them_no_more",
        "test_killed_again_and_again_each_message_is_answered_once_and_no_program_is_left",
    ),
    "e2e/test_server_on_postgres.py": (
        "test_a_second_server_in_the_same_data_folder_is_refused_and_the_first_goes_on",
        "test_a_server_is_not_ready_while_postgresql_is_away_and_goes_on_by_itself",
        "test_the_operator_sees_the_database_and_never_its_password",
        "test_what_clients_wrote_is_there_after_a_kill",
    ),
    "e2e/test_setup.py": (
        "test_a_client_reads_mail_over_http_by_the_file_that_was_written",
        "test_a_client_reads_mail_over_stdio_by_the_file_that_was_written",
    ),
    "e2e/test_standby_and_dump.py": ("test_a_dump_of_a_running_server_is_restored_into_another_database",),
    "e2e/test_stood_still.py": (
        "test_what_one_did_alone_is_the_others_when_it_stood_still_and_when_it_goes_on",
    ),
    "e2e/test_support_chat.py": (
        "test_a_customer_steers_a_person_agrees_and_a_killed_worker_is_missed_by_nobody",
    ),
    "e2e/test_tasks.py": ("test_no_task_has_two_holders_and_none_is_lost[200",),
    "e2e/test_timeline_in_a_browser.py": (
        "test_a_mark_opens_beside_the_picture_and_escape_closes_it",
        "test_the_picture_has_what_the_list_has_with_and_without_a_script",
    ),
    "e2e/test_two_processes_over_http.py": (
        "test_two_processes_write_answer_acknowledge_reserve_and_search",
    ),
    "e2e/test_waiting_codex.py": ("test_mail_queues_a_turn_whose_prompt_confirms_it",),
    "e2e/test_waiting_hook.py": ("test_bad_input_never_wakes", "test_each_message_wakes_once"),
    "e2e/test_web_chat_in_a_browser.py": (
        "test_a_message_is_sent_kept_and_answered_in_place",
        "test_a_page_that_was_cut_off_comes_back_and_misses_nothing",
        "test_the_answer_that_is_written_can_be_stopped_by_button_and_by_key",
        "test_what_anybody_writes_does_nothing",
    ),
    "e2e/test_work_across_servers.py": (
        "test_a_question_is_answered_at_the_server_that_did_not_ask_it",
        "test_a_token_that_one_server_made_is_good_at_the_other_until_that_revokes_it",
    ),
    "e2e/test_work_in_a_browser.py": ("test_a_person_writes_answers_and_cancels_without_a_script",),
    "meta/test_planted_faults.py": (
        "test_each_fault_has_one_place_in_the_source",
        "test_the_copy_is_what_is_tested",
    ),
    "properties/test_answers.py": (
        "test_each_question_gets_one_answer_by_somebody_who_may_and_all_surfaces_agree[few",
    ),
    "real_clients/test_acp_permissions.py": ("test_six_messages_around_a_permission_are_six_answers[codex",),
    "real_clients/test_bad_input.py": (
        "test_a_run_of_a_client_that_is_logged_out_says_how_to_log_in[claude]",
        "test_setup_says_of_a_project_whether_the_real_client_trusts_it[codex",
    ),
    "real_clients/test_cooperation.py": (
        "test_the_page_has_a_row_for_each_failure_and_for_its_cost",
        "test_the_page_is_what_the_program_writes",
    ),
    "real_clients/test_collisions.py": (
        "test_no_edit_is_lost_in_silence[claude-shell",
        "test_no_edit_is_lost_in_silence[codex-whole",
        "test_no_edit_is_lost_in_silence[opencode-edit",
        "test_the_outcomes_of_the_last_whole_run_are_those_of_the_table",
    ),
    "real_clients/test_libraries.py": (
        "test_a_library_works_with_our_api[langchain_stream",
        "test_a_library_works_with_our_api[litellm_tools",
        "test_a_library_works_with_our_api[open_responses_streaming",
        "test_each_case_is_in_the_tables_of_the_documents",
    ),
    "real_clients/test_many_messages.py": (),
    "real_clients/test_real_servers.py": (),
    "real_clients/test_removed.py": ("test_a_client_edits_as_before_when_the_command_is_gone[claude",),
    "real_clients/test_table.py": (
        "test_a_client_does_what_the_table_says[claude-mail_told_at_the_prompt",
        "test_a_client_does_what_the_table_says[claude-reserved_edit_refused",
        "test_a_client_does_what_the_table_says[claude-woken_and_answers",
        "test_a_client_does_what_the_table_says[cline-woken_and_answers",
        "test_a_client_does_what_the_table_says[codex-mail_told_at_the_prompt",
        "test_a_client_does_what_the_table_says[codex-woken_and_answers",
        "test_a_client_does_what_the_table_says[copilot-woken_and_answers",
        "test_a_client_does_what_the_table_says[gemini-woken_and_answers",
        "test_a_client_does_what_the_table_says[opencode-woken_and_answers",
        "test_every_client_has_a_cell_for_every_scenario",
        "test_the_page_says_what_the_table_says_of_the_pinned_versions",
        "test_the_product_names_the_pinned_releases_as_tried",
    ),
    "real_clients/test_woken.py": ("test_ten_messages_get_ten_right_answers[claude]",),
    "real_clients/test_task_race.py": ("test_no_task_has_two_holders_and_none_is_lost[12",),
    "soak/test_soak.py": (
        "test_a_traceback_in_the_log_is_a_finding_unless_a_program_was_killed_or_the_model_slow",
    ),
    "soak/test_several.py": ("test_two_runs_of_a_conversation_at_once_are_seen_by_the_model",),
    "unit/test_guard_and_hook_managers.py": (
        "test_commits_go_on_in_each_order_and_what_is_installed_runs[PGP",
        "test_commits_go_on_in_each_order_and_what_is_installed_runs[GPG",
        "test_commits_go_on_in_each_order_and_what_is_installed_runs[gpPG",
    ),
}
"""For each file that repeats what faster tests hold: the cases of it that CI runs, the others run at night.

An entry is the name of a test, or its name and `[` with the beginning of the parameters of a case. Only long cases move,
and all cases of `real_clients`.
"""


def is_in_ci(file: str, case: str) -> bool:
    """Return whether CI runs a case of a file that `IN_CI` lists; True if it does not list the file."""
    listed = IN_CI.get(file)
    if listed is None:
        return True
    return any(case.startswith(one) if "[" in one else case.partition("[")[0] == one for one in listed)


def lane_of(file: str, case: str, parameters: Iterable[object], *, is_long: bool) -> str | None:
    """Return the marker that a case gets, or None.

    Args:
        file: its path below `tests`.
        case: the name of the test, with its parameters in brackets.
        parameters: the values of its parameters.
        is_long: whether the test is marked `long`.
    """
    folder = file.partition("/")[0]
    if (is_long or folder == "real_clients") and not is_in_ci(file, case):
        return "nightly"
    kinds = TWINS & {str(value) for value in parameters}
    if not kinds:
        return None
    if "pooled" in kinds:
        return "nightly"
    return "long" if folder in WHERE_ENGINES_DIFFER else "nightly"
