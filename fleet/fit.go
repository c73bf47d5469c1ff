package fleet

// A FlashLayout is what a device's boot poll says about where firmware goes.
type FlashLayout struct {
	SlotSize   int64    // bytes of its smallest OTA slot; 0: it has none
	Labels     []string // of its partitions
	ChipRev    int      // major*100+minor; 0 if unknown
	FreeHeap   int64    // minimum_free_heap_size, bytes; 0 if unknown
	FlashBytes int64    // flash_size
}

// FitOptions are the parts of a plan that decide who fits.
type FitOptions struct {
	Mode           DispatchMode
	AllowDowngrade bool
}
