package device

import (
	"encoding/json"
	"strconv"

	"fleetd/fleet"
)

// Limits of plausible values about a device's flash.
const (
	maxPartitions = 64 // a partition table of 3 KB has room for 95, and no board has 20
	maxFlash      = 1 << 30
)

// layout returns the device's flash layout, or nil if the body does not contain one: without a
// partition table nothing can be checked for size.
func (f facts) layout() *fleet.FlashLayout {
	table, _ := f["partition_table"].([]any)
	if len(table) == 0 {
		return nil
	}
	l := &fleet.FlashLayout{FlashBytes: between(f["flash_size"], maxFlash), FreeHeap: between(f["minimum_free_heap_size"],
		maxFlash)}
	if chip, ok := f["chip_info"].(map[string]any); ok {
		l.ChipRev = int(between(chip["revision"], 65535))
	}
	for _, entry := range table[:min(len(table), maxPartitions)] {
		if p, ok := entry.(map[string]any); ok {
			addPartition(l, p)
		}
	}
	return l
}

// addPartition records the partition's label and, for an OTA slot, its size: an image must fit the
// smallest slot, because slots are used in turn.
func addPartition(l *fleet.FlashLayout, p map[string]any) {
	if label, ok := p["label"].(string); ok {
		if label = fleet.CleanText(label, 16); label != "" {
			l.Labels = append(l.Labels, label)
		}
	}
	kind, known := number(p["type"])
	subtype, _ := number(p["subtype"])
	if !known || kind != 0 || subtype < 16 || subtype > 31 {
		return
	}
	if size := between(p["size"], maxFlash); size > 0 && (l.SlotSize == 0 || size < l.SlotSize) {
		l.SlotSize = size
	}
}

// between returns v as a number from 0 to limit, or 0. Stock firmware sends the heap's size as
// text.
func between(v any, limit int64) int64 {
	n, ok := number(v)
	if !ok || n < 0 || n > limit {
		return 0
	}
	return n
}

func number(v any) (int64, bool) {
	var text string
	switch v := v.(type) {
	case json.Number:
		text = string(v)
	case string:
		text = v
	}
	n, err := strconv.ParseInt(text, 10, 64)
	return n, err == nil
}
