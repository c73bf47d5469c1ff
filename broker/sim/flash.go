package sim

import "fmt"

// A trial is the state of an image between its installation and its confirmation (7.4).
type trial uint8

const (
	confirmed trial = iota
	fresh           // installed; the next boot is its first
	pending         // booted; a reset before a good OTA check rolls it back
)

// A slot contains an image. Boards without OTA slots have a single slot, called factory.
type slot struct {
	label string
	build *build
}

// flash is the part of the flash that contains firmware.
type flash struct {
	slots    [2]slot
	current  int
	upgraded bool // the running image was installed by an upgrade, not at the factory
	trial    trial
}

func newFlash(b *board, first *build) flash {
	labels := b.slots()
	if len(labels) == 0 {
		labels = []string{"factory"}
	}
	var f flash
	for i, label := range labels {
		f.slots[i].label = label
	}
	f.slots[0].build = first
	return f
}

func (d *Device) running() slot {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.flash.slots[d.flash.current]
}

// nextSlot returns the partition that an upgrade writes to.
func (d *Device) nextSlot() (*partition, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	label := d.flash.slots[1-d.flash.current].label
	if label == "" {
		return nil, fmt.Errorf("the flash has no OTA slot")
	}
	return d.board.partition(label), nil
}

// install makes the next boot start b from the other slot.
func (d *Device) install(b *build) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.flash.current = 1 - d.flash.current
	d.flash.slots[d.flash.current].build = b
	d.flash.trial, d.flash.upgraded = fresh, true
}

// startImage performs the bootloader's part of a boot. It reports whether it rolled back an
// unconfirmed image.
func (d *Device) startImage() (rolledBack bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch d.flash.trial {
	case fresh:
		d.flash.trial = pending
	case pending:
		d.flash.current = 1 - d.flash.current
		d.flash.trial, d.flash.upgraded = confirmed, false
		return true
	}
	return false
}

// confirm implements MarkCurrentVersionValid.
func (d *Device) confirm() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.flash.trial = confirmed
}

func (d *Device) onTrial() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.flash.trial != confirmed
}

// newBuildHas reports whether the device has a fault that shows only on a build installed by an
// upgrade.
func (d *Device) newBuildHas(kind FaultKind) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.flash.upgraded && d.faults.has(kind)
}
