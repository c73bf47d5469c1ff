package ui

import (
	"context"
	"strings"

	"fleetd/fleet"
)

// An ImportPage imports a file with names, tags and notes of devices: GET and POST [PathImport].
// With a plan it shows the changes; POST its "apply" with csv and digest makes exactly these
// changes.
type ImportPage struct {
	Problem string            // why the file is rejected; "" if it is accepted
	Plan    *fleet.ImportPlan // nil before a file is read
	CSV     string            // the lines with changes
}

// maxShownLines bounds each list of a plan on the page.
const maxShownLines = 200

func shownOf[T any](all []T) []T { return all[:min(len(all), maxShownLines)] }

// An importField is one field of a device before and after an import.
type importField struct{ key, old, new string }

func importFields(c fleet.ImportChange) (fields []importField) {
	if c.New.Name != nil {
		fields = append(fields, importField{"import.name", *c.Old.Name, *c.New.Name})
	}
	if c.New.Tags != nil {
		fields = append(fields, importField{"import.tags", strings.Join(*c.Old.Tags, " "),
			strings.Join(*c.New.Tags, " ")})
	}
	if c.New.Notes != nil {
		fields = append(fields, importField{"import.notes", *c.Old.Notes, *c.New.Notes})
	}
	return fields
}

// leftLines counts the lines that are left out, by reason, most frequent first.
func leftLines(ctx context.Context, lines []fleet.LeftOutLine) (out []string) {
	for _, code := range fleet.LeftOutCodes {
		n := 0
		for _, l := range lines {
			if l.Code == code {
				n++
			}
		}
		if n > 0 {
			out = append(out, t(ctx, "bulk.left_part", "n", n, "why", bulkReason(ctx, code)))
		}
	}
	return out
}
