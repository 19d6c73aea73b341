//! One line per backend: the macros that make a test of every story.

/// Makes a test of every story of the [store suite](crate::store) for the stores of a
/// [`Builder`](crate::Builder) whose guard is a [`StoreGuard`](crate::StoreGuard).
///
/// `store_conformance!(MyStore, durable)` also tells the stories of [`durability`](crate::store::durability)
/// and needs a guard that can be [reopened](crate::Reopen). The form must match
/// [`Builder::DURABLE`](crate::Builder::DURABLE), or the tests do not compile.
#[macro_export]
macro_rules! store_conformance {
    ($builder:ty) => {
        const _: () = assert!(
            !<$builder as $crate::Builder>::DURABLE,
            "a durable store is tested by store_conformance!(Builder, durable)"
        );
        mod store_conformance {
            use super::*;
            $crate::__store_stories!($builder);
        }
    };
    ($builder:ty, durable) => {
        const _: () = assert!(
            <$builder as $crate::Builder>::DURABLE,
            "a store that is not durable is tested by store_conformance!(Builder)"
        );
        mod store_conformance {
            use super::*;
            $crate::__store_stories!($builder);
            $crate::__store_durability_stories!($builder);
        }
    };
}

/// Makes a test of every story of the [queue suite](crate::queue) for the queues of a
/// [`QueueBuilder`](crate::QueueBuilder) whose guard is a [`QueueGuard`](crate::QueueGuard).
///
/// `queue_conformance!(MyQueue, durable)` also tells that unacknowledged jobs are there after the queue was
/// [reopened](crate::Reopen). The form must match [`Builder::DURABLE`](crate::Builder::DURABLE).
#[macro_export]
macro_rules! queue_conformance {
    ($builder:ty) => {
        const _: () = assert!(
            !<$builder as $crate::Builder>::DURABLE,
            "a durable queue is tested by queue_conformance!(Builder, durable)"
        );
        mod queue_conformance {
            use super::*;
            $crate::__queue_stories!($builder);
        }
    };
    ($builder:ty, durable) => {
        const _: () = assert!(
            <$builder as $crate::Builder>::DURABLE,
            "a queue that is not durable is tested by queue_conformance!(Builder)"
        );
        mod queue_conformance {
            use super::*;
            $crate::__queue_stories!($builder);
            $crate::__queue_durability_stories!($builder);
        }
    };
}

/// Makes a test of every story of the [blob suite](crate::blob) for the blob stores of a
/// [`Builder`](crate::Builder) whose guard is a [`BlobGuard`](crate::BlobGuard).
///
/// `blob_conformance!(MyBlobs, durable)` also tells that blobs are there after the store was
/// [reopened](crate::Reopen). The form must match [`Builder::DURABLE`](crate::Builder::DURABLE).
#[macro_export]
macro_rules! blob_conformance {
    ($builder:ty) => {
        const _: () = assert!(
            !<$builder as $crate::Builder>::DURABLE,
            "a durable blob store is tested by blob_conformance!(Builder, durable)"
        );
        mod blob_conformance {
            use super::*;
            $crate::__blob_stories!($builder);
        }
    };
    ($builder:ty, durable) => {
        const _: () = assert!(
            <$builder as $crate::Builder>::DURABLE,
            "a blob store that is not durable is tested by blob_conformance!(Builder)"
        );
        mod blob_conformance {
            use super::*;
            $crate::__blob_stories!($builder);
            $crate::__blob_durability_stories!($builder);
        }
    };
}

/// Makes a module of tests for each module of stories.
#[doc(hidden)]
#[macro_export]
macro_rules! __stories {
    ($builder:ty, |$guard:ident| $arguments:tt, $run:expr;
     $($($path:ident)::+ => $theme:ident { $($story:ident,)* })*) => {$(
        mod $theme {
            use super::*;
            use $crate::$($path)::+ as stories;
            $(
                #[test]
                fn $story() {
                    $run(async {
                        #[allow(unused_mut)]
                        let mut $guard = <$builder as $crate::Builder>::build().await;
                        stories::$story $arguments.await;
                    });
                }
            )*
        }
    )*};
}

#[doc(hidden)]
#[macro_export]
macro_rules! __store_stories {
    ($builder:ty) => {
        $crate::__stories! { $builder, |guard| ($crate::StoreGuard::store(&guard)), $crate::run::story;
            store::attempts => attempts {
                open_attempt_per_run,
                open_attempt_per_slot,
                exclusive_instance,
                fence,
                attempt_number,
                a_changeset_may_close_one_attempt_and_open_the_next,
                a_batch_does_not_give_a_slot_twice,
            }
            store::catalogs => catalogs {
                projects_by_id,
                tokens_of_a_project,
                templates_of_a_project,
                template_versions_newest_first,
                instances_of_a_project,
                secrets_of_a_project,
                workers_by_id,
                worker_contacts_by_worker,
                keys_of_a_worker,
                generations_newest_first,
                orphan_states_by_key,
                artifacts_of_a_run,
                late_evidence_of_a_run,
            }
            store::commit => commit {
                every_kind_reads_back_as_it_was_written,
                a_record_that_was_never_written_is_not_there,
                an_empty_batch_and_an_empty_changeset_change_nothing,
                a_changeset_happens_as_a_whole_or_not_at_all,
                a_conflict_does_not_disturb_its_neighbours,
                a_conflict_leaves_names_free_for_its_neighbours,
                later_changesets_of_a_batch_see_earlier_ones,
                later_puts_of_a_changeset_see_earlier_ones,
                a_large_batch_is_committed_in_order,
            }
            store::concurrency => concurrency {
                committers_of_different_records_all_succeed,
                of_those_that_update_one_version_one_wins,
                of_those_that_insert_one_record_one_wins,
                of_those_that_open_an_attempt_of_a_run_one_wins,
                two_that_check_what_the_other_replaces_do_not_both_win,
                no_update_is_lost,
                upserts_of_one_record_all_succeed,
                a_reader_of_events_never_misses_one,
                fences_allocated_together_and_committed_are_all_different,
            }
            store::constraints => constraints {
                project_name,
                a_unique_value_is_free_once_it_was_given_up,
                a_changeset_may_hand_a_unique_value_over,
                token_hash,
                template_name,
                instance_name,
                secret_name,
                worker_name,
                enrollment_hash,
                state_object_per_instance,
                live_promotion,
                runs_without_a_plan_are_not_promotions,
            }
            store::events => events {
                events_read_back_with_their_sequence_numbers,
                the_head_is_the_newest_event,
                the_store_alone_numbers_events,
                numbers_grow_in_commit_order,
                events_are_filtered_by_project_and_run,
                events_are_read_in_pages,
            }
            store::fences => fences {
                fences_grow_past_committed_attempts,
                a_conflict_gives_no_fence_back,
            }
            store::lists => lists {
                runs_of_a_project_newest_first,
                runs_by_every_status,
                the_queue_by_priority_then_age_then_id,
                c5_times_far_off_keep_their_order,
                the_queue_follows_the_status,
                runs_pending_approval,
                attempts_of_a_run_and_open_attempts,
                approvals_of_a_project_newest_first,
                listed_records_carry_their_version,
            }
            store::literal => literal {
                g17_hostile_text_is_stored_literally,
                g17_a_hostile_key_finds_nothing,
                g17_a_hostile_cursor_is_only_compared,
                g17_a_hostile_idempotency_key_is_a_key,
                a_megabyte_is_stored_like_any_other_text,
                json_keeps_its_value,
            }
            store::logs => logs {
                a_log_that_was_never_written_is_empty,
                a_log_is_read_from_inside_a_chunk,
                a_read_is_bounded_but_gives_at_least_one_chunk,
                chunks_are_in_the_order_of_their_bytes,
                a_log_ends_where_its_last_chunk_ends,
                each_attempt_has_its_own_log,
                any_bytes_of_any_stream_are_kept,
                a_byte_is_written_once,
            }
            store::outbox => outbox {
                messages_are_read_oldest_first,
                a_workers_messages_are_read_apart,
                a_published_message_is_removed,
                removing_twice_is_no_error,
                a_removal_is_part_of_its_changeset,
            }
            store::paging => paging {
                every_list_can_be_read_in_pages,
                a_cursor_is_stable_while_newer_records_arrive,
                a_reader_of_an_ascending_list_finds_what_arrived_later,
                a_cursor_holds_after_its_record_left_the_list,
                a_cursor_that_is_no_number_is_after_nothing,
            }
            store::queries => queries {
                a_project_is_found_by_name,
                a_lookup_sees_the_latest_version,
                a_name_is_found_whole,
                a_token_is_found_by_hash,
                a_template_is_found_by_name_in_its_project,
                an_instance_is_found_by_name_in_its_project,
                a_secret_is_found_by_name_in_its_project,
                a_worker_is_found_by_name_and_session,
                an_enrollment_is_found_by_hash,
                an_attempt_is_found_by_fence,
                typed_reads_give_the_same_records,
            }
            store::versions => versions {
                a_version_grows_by_one_with_every_replacement,
                a_replacement_needs_the_exact_version,
                an_insertion_needs_absence,
                an_upsert_inserts_or_replaces,
                an_immutable_record_is_never_replaced,
                an_immutable_record_keeps_its_first_content,
                a_check_guards_a_record_that_was_only_read,
                a_check_works_for_every_kind,
                checks_come_before_puts,
            }
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __store_durability_stories {
    ($builder:ty) => {
        $crate::__stories! { $builder, |guard| (&mut guard), $crate::run::story;
            store::durability => durability {
                records_and_versions_survive,
                lists_and_lookups_survive,
                events_survive_and_go_on,
                the_outbox_survives,
                logs_survive,
                fences_grow_across_reopening,
                constraints_hold_across_reopening,
                a_conflict_leaves_nothing_to_find_later,
            }
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __queue_stories {
    ($builder:ty) => {
        $crate::__stories! { $builder,
            |guard| ($crate::QueueGuard::queue(&guard), &<$builder as $crate::QueueBuilder>::TIMING),
            |story| $crate::run::story_in(<$builder as $crate::QueueBuilder>::TIMING.time, story);
            queue => queue {
                a_published_job_reaches_its_worker,
                a_job_waits_for_its_worker,
                a_waiting_worker_is_woken,
                a_worker_receives_its_own_jobs_only,
                jobs_of_a_worker_come_in_order,
                a_republication_is_delivered_again,
                an_acknowledged_job_is_gone,
                a_refused_job_comes_again_after_the_delay,
                a_delayed_job_does_not_hold_up_others,
                a_dropped_delivery_comes_again,
                a_new_subscriber_gets_what_was_not_acknowledged,
                dropping_next_loses_nothing,
                work_in_progress_is_not_delivered_again,
                jobs_of_many_publishers_all_arrive,
            }
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __queue_durability_stories {
    ($builder:ty) => {
        $crate::__stories! { $builder,
            |guard| (&mut guard, &<$builder as $crate::QueueBuilder>::TIMING),
            |story| $crate::run::story_in(<$builder as $crate::QueueBuilder>::TIMING.time, story);
            queue => durability {
                unacknowledged_jobs_survive,
            }
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __blob_stories {
    ($builder:ty) => {
        $crate::__stories! { $builder, |guard| ($crate::BlobGuard::blobs(&guard)), $crate::run::story;
            blob => blob {
                a_blob_reads_back,
                a_missing_blob_is_not_there,
                an_empty_blob_is_there,
                any_bytes_are_kept,
                putting_again_replaces,
                a_deleted_blob_is_gone,
                deleting_nothing_is_no_error,
                every_name_is_a_name_of_its_own,
                eight_megabytes_are_kept,
                a_reader_sees_all_or_nothing,
                writers_of_different_names_do_not_disturb_each_other,
            }
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __blob_durability_stories {
    ($builder:ty) => {
        $crate::__stories! { $builder, |guard| (&mut guard), $crate::run::story;
            blob => durability {
                blobs_survive,
            }
        }
    };
}

/// Makes a test of every story of the [executor suite](crate::executor) for each [`ExecutorKit`](crate::ExecutorKit), and
/// the `main` that runs them: it belongs into a test target with `harness = false`.
#[cfg(feature = "executor")]
#[macro_export]
macro_rules! executor_conformance {
    ($($kit:ty),+ $(,)?) => {
        fn main() -> ::std::process::ExitCode {
            $crate::executor::main(|| [$($crate::executor::trials::<$kit>()),+].into_iter().flatten().collect())
        }
    };
}
