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

/// Makes a module of tests for each module of stories.
#[doc(hidden)]
#[macro_export]
macro_rules! __stories {
    ($builder:ty, |$guard:ident| $backend:expr, $run:expr;
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
                        stories::$story($backend).await;
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
        $crate::__stories! { $builder, |guard| $crate::StoreGuard::store(&guard), $crate::run::story;
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
