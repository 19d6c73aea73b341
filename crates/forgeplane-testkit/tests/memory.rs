//! The reference backends keep their contracts.

use async_trait::async_trait;
use forgeplane_core::memory::MemoryStore;
use forgeplane_core::ports::Store;
use forgeplane_testkit::{Builder, StoreGuard, store_conformance};

struct Stores;

#[async_trait]
impl Builder for Stores {
    type Guard = Memory<MemoryStore>;
    const DURABLE: bool = false;

    async fn build() -> Self::Guard {
        Memory(MemoryStore::new())
    }
}

/// Nothing but the backend has to be kept alive.
struct Memory<T>(T);

impl StoreGuard for Memory<MemoryStore> {
    fn store(&self) -> &dyn Store {
        &self.0
    }
}

store_conformance!(Stores);
