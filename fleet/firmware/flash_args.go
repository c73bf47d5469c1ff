package firmware

import (
	"encoding/json"
	"path"
	"slices"
	"strconv"
	"strings"

	"fleetd/fleet"
	"fleetd/fleet/espimage"
)

// flasherArgsName is the file in which ESP-IDF's build lists the flash offset of each file.
const flasherArgsName = "flasher_args.json"

// flasherArgs are the used fields of that file. A nil flasherArgs contains no offsets.
type flasherArgs struct {
	Files map[string]string `json:"flash_files"` // offset to path
	App   flasherFile       `json:"app"`
	OTA   flasherFile       `json:"otadata"`
}

type flasherFile struct{ Offset, File string }

func parseFlasherArgs(text []byte) (*flasherArgs, error) {
	var a flasherArgs
	if len(text) > maxArgsBytes || json.Unmarshal(text, &a) != nil || len(a.Files) == 0 || len(a.Files) > maxBuildFiles {
		return nil, fleet.Refuse(fleet.ErrInvalid, "flasher_args.unreadable", "file", flasherArgsName).At("file")
	}
	for offset, name := range a.Files {
		if _, err := strconv.ParseUint(offset, 0, 32); err != nil {
			return nil, fleet.Refuse(fleet.ErrInvalid, "flasher_args.no_address", "file", flasherArgsName,
				"name", name, "offset", offset).At("file")
		}
	}
	return &a, nil
}

// offsetOf finds a file by its path, or by its last element: browsers send only that. A name
// that two files share matches neither.
func (a *flasherArgs) offsetOf(name string) (offset int64, found bool) {
	if a == nil {
		return 0, false
	}
	for at, named := range a.Files {
		if !samePath(named, name) {
			continue
		}
		if found {
			return 0, false
		}
		n, _ := strconv.ParseUint(at, 0, 32) // parsed before
		offset, found = int64(n), true
	}
	return offset, found
}

func samePath(named, sent string) bool {
	named = path.Clean(strings.ReplaceAll(named, `\`, "/"))
	return sent == named || strings.HasSuffix(sent, "/"+named) || !strings.Contains(sent, "/") && sent == path.Base(named)
}

func (a *flasherArgs) isOTAData(name string) bool {
	return a != nil && a.OTA.File != "" && samePath(a.OTA.File, name)
}

// complete returns an error for a file that the build flashes and that was not uploaded. The
// application may already be stored.
func (a *flasherArgs) complete(files []buildFile) error {
	if a == nil {
		return nil
	}
	for _, named := range a.Files {
		there := slices.ContainsFunc(files, func(f buildFile) bool { return samePath(named, f.name) })
		if !there && named != a.App.File {
			return fleet.Refuse(fleet.ErrInvalid, "file_missing.named", "file", flasherArgsName,
				"name", named).At("file")
		}
	}
	return nil
}

// check compares a layout with the addresses of the build: a difference means that files of two
// builds were mixed.
func (a *flasherArgs) check(l *espimage.Layout) error {
	if a == nil {
		return nil
	}
	for offset, name := range a.Files {
		at, _ := strconv.ParseUint(offset, 0, 32) // parsed before
		if !slices.ContainsFunc(l.Parts, func(p espimage.Part) bool { return p.Offset == int64(at) }) {
			return fleet.Refuse(fleet.ErrInvalid, "flasher_args.nothing_begins", "file", flasherArgsName,
				"name", name, "offset", "0x"+strconv.FormatUint(at, 16)).At("file")
		}
	}
	return nil
}
