package fleet

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"iter"
	"slices"
	"strings"

	"github.com/google/uuid"
)

// An ImportPlan is the set of changes that a file of devices makes.
type ImportPlan struct {
	// Digest identifies these changes of these devices. It differs if any part of them
	// differs.
	Digest    string
	Lines     int // valid lines
	Unchanged int // lines that change nothing
	Changes   []ImportChange
	LeftOut   []LeftOutLine // lines whose devices cannot be changed
	Invalid   int           // number of invalid lines
	Problems  []LineProblem // problems of the first invalid lines
}

// An ImportChange is the change by one line. Fields that stay unchanged are nil in both Old
// and New.
type ImportChange struct {
	Line     int
	ID       DeviceID
	Title    string // current title of the device
	Old, New DevicePatch
}

// A LeftOutLine is a line whose device the import skips. Code is one of [LeftOutCodes].
type LeftOutLine struct {
	Line int
	ID   DeviceID
	Code string
}

// PlanImport returns the changes that a file would make. It changes nothing.
func (s *Devices) PlanImport(ctx context.Context, by Principal, f DeviceFile) (ImportPlan, error) {
	if err := by.MaySomewhere(RoleOperator, "change_device"); err != nil {
		return ImportPlan{}, err
	}
	ctx = WithScope(ctx, by)
	i := newImporting(by, f)
	for page := range slices.Chunk(i.ids, BulkPage) {
		devices, err := s.store.DevicesByID(ctx, page)
		if err != nil {
			return ImportPlan{}, err
		}
		i.take(page, devices)
	}
	return i.plan(), nil
}

// Import makes the changes that a plan of the file showed, all or none. It returns
// [ErrConflict] if the changes differ by now.
func (s *Devices) Import(ctx context.Context, by Principal, f DeviceFile, digest string) (ImportPlan, error) {
	if err := by.MaySomewhere(RoleOperator, "change_device"); err != nil {
		return ImportPlan{}, err
	}
	bulk := uuid.Must(uuid.NewV7())
	var i *importing
	plan := func(first bool, ids []DeviceID, devices []Device) (DeviceChanges, error) {
		if first {
			i = newImporting(by, f)
		}
		return DeviceChanges{Bulk: bulk, At: s.now(), Changes: i.take(ids, devices)}, nil
	}
	var done ImportPlan
	last := func() error {
		if done = i.plan(); done.Digest != digest {
			return Refuse(ErrConflict, "import_differs", "n", len(done.Changes))
		}
		return nil
	}
	ids := newImporting(by, f).ids
	if err := s.bulk.ChangeDevices(WithScope(ctx, by), by, ids, plan, last); err != nil {
		return ImportPlan{}, err
	}
	changed := make([]DeviceID, len(done.Changes))
	for n, c := range done.Changes {
		changed[n] = c.ID
	}
	s.changedMany(changed, "")
	return done, nil
}

// importing compares a file with devices, page by page.
type importing struct {
	by    Principal
	file  DeviceFile
	lines map[DeviceID]*DeviceLine
	ids   []DeviceID // sorted
	done  ImportPlan
}

func newImporting(by Principal, f DeviceFile) *importing {
	i := &importing{by: by, file: f, lines: make(map[DeviceID]*DeviceLine, len(f.Lines)),
		done: ImportPlan{Lines: len(f.Lines), Invalid: f.Invalid, Problems: f.Problems}}
	for n := range f.Lines {
		l := &f.Lines[n]
		i.lines[l.ID] = l
		i.ids = append(i.ids, l.ID)
	}
	slices.Sort(i.ids)
	return i
}

func (i *importing) take(ids []DeviceID, devices []Device) []DeviceChange {
	byID := make(map[DeviceID]*Device, len(devices))
	for n := range devices {
		byID[devices[n].ID] = &devices[n]
	}
	var changes []DeviceChange
	for _, id := range ids {
		l, d := i.lines[id], byID[id]
		c, why := i.judge(l, d)
		switch {
		case why == LeftOutUnchanged:
			i.done.Unchanged++
		case why != "":
			i.done.LeftOut = append(i.done.LeftOut, LeftOutLine{l.Line, id, why})
		default:
			i.done.Changes = append(i.done.Changes, c)
			changes = append(changes, DeviceChange{id, c.New})
		}
	}
	return changes
}

func (i *importing) judge(l *DeviceLine, d *Device) (c ImportChange, why string) {
	switch {
	case d == nil:
		return c, LeftOutUnknown
	case !i.by.RoleOn(*d).Allows(RoleOperator):
		return c, LeftOutRole
	case d.RetiredAt != nil:
		return c, LeftOutRetired
	}
	c = ImportChange{Line: l.Line, ID: l.ID, Title: d.Title()}
	after := *d
	if n := l.Patch.Name; n != nil && *n != d.Name {
		c.Old.Name, c.New.Name, after.Name = &d.Name, n, *n
	}
	if n := l.Patch.Notes; n != nil && *n != d.Notes {
		c.Old.Notes, c.New.Notes = &d.Notes, n
	}
	if n := l.Patch.Tags; n != nil && !slices.Equal(*n, slices.Sorted(slices.Values(d.Tags))) {
		c.Old.Tags, c.New.Tags, after.Tags = &d.Tags, n, *n
	}
	switch {
	case c.New == DevicePatch{}:
		return c, LeftOutUnchanged
	case i.by.RoleOn(after) != i.by.RoleOn(*d):
		return c, LeftOutScope
	}
	return c, ""
}

// plan returns the finished plan, with changes in the order of the file.
func (i *importing) plan() ImportPlan {
	p := i.done
	digest := sha256.New()
	for _, c := range p.Changes { // sorted by id, independent of the order in the file
		_ = json.NewEncoder(digest).Encode([]any{c.ID, c.Old, c.New})
	}
	p.Digest = hex.EncodeToString(digest.Sum(nil))
	slices.SortFunc(p.Changes, func(a, b ImportChange) int { return a.Line - b.Line })
	slices.SortFunc(p.LeftOut, func(a, b LeftOutLine) int { return a.Line - b.Line })
	return p
}

// Changing returns the lines of the file that change something, as a file. Callers store it
// until the operator confirms; its plan has the same digest.
func (f DeviceFile) Changing(p ImportPlan) []byte {
	var b bytes.Buffer
	lines := make(map[DeviceID]DeviceLine, len(f.Lines))
	for _, l := range f.Lines {
		lines[l.ID] = l
	}
	var devices []Device
	for _, c := range p.Changes {
		d, l := Device{ID: c.ID}, lines[c.ID].Patch
		if l.Name != nil {
			d.Name = *l.Name
		}
		if l.Tags != nil {
			d.Tags = *l.Tags
		}
		if l.Notes != nil {
			d.Notes = *l.Notes
		}
		devices = append(devices, d)
	}
	_ = WriteDeviceFile(&b, f.Columns, func() (page []Device, _ error) { // a write to memory cannot fail
		page, devices = devices, nil
		return page, nil
	})
	return b.Bytes()
}

// Export writes the devices of a query as a file, sorted by id. If the query or the columns
// are invalid, it fails before it writes.
func (s *Devices) Export(ctx context.Context, w io.Writer, query string, columns []string) error {
	q, err := ParseQuery(query)
	if err != nil {
		return err
	}
	if err := checkColumns(columns); err != nil {
		return err
	}
	ids, err := s.DeviceIDs(ctx, q)
	if err != nil {
		return err
	}
	pages, stop := iter.Pull(slices.Chunk(ids, exportPage))
	defer stop()
	return WriteDeviceFile(w, columns, func() ([]Device, error) {
		page, ok := pages()
		if !ok {
			return nil, nil
		}
		devices, err := s.store.DevicesByID(ctx, page)
		slices.SortFunc(devices, func(a, b Device) int { return strings.Compare(string(a.ID), string(b.ID)) })
		return devices, err
	})
}
