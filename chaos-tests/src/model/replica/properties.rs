//! Properties that the model checks, each named after the invariants that it shows.

use stateright::Property;

use super::Replica;
use super::copy::is_true;
use super::state::{Broken, State};

// === impl Replica ===

impl Replica {
    /// Properties of every state, and states that have to be reachable.
    pub(super) fn all_properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(
                "I1 I5 copies are the cloud's, or are about to be",
                |_, state: &State| {
                    state.coordinator.memory.is_true(&state.cloud) && state.hub.memory.is_true(&state.cloud)
                },
            ),
            Property::always("I5 an incomplete copy is never listed", |_, state: &State| {
                !state.reader.listed || state.reader.position > 0
            }),
            Property::always(
                "I2 a client ends with the last state, no deletion is lost",
                |_, state: &State| {
                    let reader = &state.reader;
                    !reader.listed || is_true(&state.cloud, reader.timeline, reader.position, &reader.known)
                },
            ),
        ];
        properties.extend(rules());
        properties.push(Property::sometimes("a client is up to date", |_, state: &State| {
            let (reader, head) = (&state.reader, state.cloud.head());
            reader.timeline == state.cloud.timeline() && reader.position == head && head > 2
        }));
        if self.bounds.rollbacks > 0 {
            properties.push(Property::sometimes(
                "a client follows a new generation",
                |_, state: &State| state.reader.timeline > 0,
            ));
        }
        properties
    }
}

fn rules() -> Vec<Property<Replica>> {
    vec![
        Property::always("I2 a client's RV never goes back", |_, state: &State| {
            state.broken != Some(Broken::ReaderWentBack)
        }),
        Property::always("I1 a client gets nothing the cloud never had", |_, state: &State| {
            state.broken != Some(Broken::Forged)
        }),
        Property::always(
            "I7 nothing is reported gone that was not deleted",
            |_, state: &State| state.broken != Some(Broken::FalseDeletion),
        ),
        Property::always("I7 no client relists without a reason", |_, state: &State| {
            state.broken != Some(Broken::Relist)
        }),
        Property::always("I3 C never decreases within a generation", |_, state: &State| {
            state.broken != Some(Broken::PositionWentBack)
        }),
    ]
}
