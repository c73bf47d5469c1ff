package host

import (
	"slices"
	"sync"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/plugin"
)

// maxLines is how many lines of a plug-in's log are kept.
const maxLines = 500

// lines is the log of a plug-in. The zero value is ready.
type lines struct {
	mu     sync.Mutex
	kept   []plugin.Line
	number int64 // of the latest line
	second time.Time
	added  int // in this second
}

// maxLinesPerSecond bounds what a flooding plug-in costs. The rest is dropped.
const maxLinesPerSecond = 100

func (l *lines) add(source plugin.Source, text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now().UTC()
	if now.Sub(l.second) > time.Second {
		l.second, l.added = now, 0
	}
	if l.added++; l.added > maxLinesPerSecond && source != plugin.FromFleetd {
		if l.added == maxLinesPerSecond+1 {
			l.append(plugin.Line{At: now, Source: plugin.FromFleetd, Text: "more lines within a second were dropped"})
		}
		return
	}
	l.append(plugin.Line{At: now, Source: source, Text: fleet.CleanText(text, 1000)})
}

func (l *lines) append(line plugin.Line) {
	if len(l.kept) >= maxLines {
		l.kept = slices.Delete(l.kept, 0, 1+len(l.kept)-maxLines)
	}
	l.number = max(l.number+1, line.At.UnixMicro())
	line.Number = l.number
	l.kept = append(l.kept, line)
}

func (l *lines) all() []plugin.Line {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.kept)
}
