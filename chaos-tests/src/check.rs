//! Explores models: the complete rules must hold, and an exploration must fail for each rule left out.

use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::Hash;
use std::time::Duration;

use stateright::{Checker, Expectation, HasDiscoveries, Model, Path};
use yurt_runtime::Clock;

/// Result of one exploration.
#[derive(Debug)]
pub struct Explored {
    /// Distinct states.
    pub states: usize,
    /// Longest path.
    pub depth: usize,
    /// True if every state within the bounds was visited.
    pub exhausted: bool,
    /// Duration of the exploration.
    pub took: Duration,
    /// Properties that do not hold, with the steps that lead there.
    pub failures: Vec<Failure>,
    /// Properties that should be reachable and were not.
    pub unseen: Vec<&'static str>,
}

/// Picks one of the states that are equal except for names.
pub type Representative<State> = fn(&State) -> State;

/// A property that does not hold.
#[derive(Debug)]
pub struct Failure {
    /// Name of the property.
    pub property: &'static str,
    /// The path found to the failure, one line per step.
    pub trace: String,
}

/// Order in which states are visited.
#[derive(Debug)]
pub enum Order<State> {
    /// Breadth first: the path to a failure is the shortest. All frontier states are kept, gigabytes of them in a large
    /// model.
    Nearest,
    /// Depth first: only the current path is kept. States with the same representative count as one.
    Deepest(Option<Representative<State>>),
}

/// Explores `model` with `threads` threads until everything is visited, a property fails, or `longest` has passed.
pub fn explore<M>(model: M, order: Order<M::State>, threads: usize, longest: Duration) -> Explored
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq + Send + Sync + 'static,
{
    let clock = Clock::system();
    let began = clock.boot();
    let properties: Vec<_> = model
        .properties()
        .into_iter()
        .map(|property| (property.name, property.expectation))
        .collect();
    let builder = model
        .checker()
        .threads(threads)
        .timeout(longest)
        .finish_when(HasDiscoveries::AnyFailures);
    let (found, states, depth) = match order {
        Order::Nearest => summary(&builder.spawn_bfs().join()),
        Order::Deepest(None) => summary(&builder.spawn_dfs().join()),
        Order::Deepest(Some(representative)) => summary(&builder.symmetry_fn(representative).spawn_dfs().join()),
    };
    let took = clock.boot().since(began);
    let failures: Vec<_> = properties
        .iter()
        .filter(|(_, expectation)| *expectation != Expectation::Sometimes)
        .filter_map(|(name, _)| {
            let path = found.get(name)?.clone();
            Some(Failure {
                property: name,
                trace: trace(path),
            })
        })
        .collect();
    let unseen = properties
        .iter()
        .filter(|(name, expectation)| *expectation == Expectation::Sometimes && !found.contains_key(name))
        .map(|(name, _)| *name)
        .collect();
    Explored {
        states,
        depth,
        exhausted: failures.is_empty() && took < longest,
        took,
        failures,
        unseen,
    }
}

type Found<M> = HashMap<&'static str, Path<<M as Model>::State, <M as Model>::Action>>;

fn summary<M: Model>(checker: &impl Checker<M>) -> (Found<M>, usize, usize)
where
    M::State: Clone + Debug + Hash + PartialEq,
    M::Action: Clone + Debug + PartialEq,
{
    (checker.discoveries(), checker.unique_state_count(), checker.max_depth())
}

fn trace<State, Action: Debug>(path: Path<State, Action>) -> String
where
    State: Debug,
{
    let mut lines = Vec::new();
    let mut last = String::new();
    for (step, (state, action)) in path.into_vec().into_iter().enumerate() {
        last = format!("{state:#?}");
        if let Some(action) = action {
            lines.push(format!("{:>4}  {action:?}", step + 1));
        }
    }
    format!("{}\nends in {last}", lines.join("\n"))
}
