package ui

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A stackChart is counts over time that add up to a whole, one layer on the other: areas, or bars if it
// has a step. The server draws it in the box of a [trend], so it needs no JavaScript; the script only
// shows the text of the moment under the pointer sooner than the browser does.
type stackChart struct {
	id, title string
	span      timeSpan
	times     []time.Time
	step      time.Duration // width of a bar, which begins at its time; 0 draws areas
	layers    []stackLayer  // from the bottom up
	links     []string      // by time, the list that a bar counts; nil: no links
	strip     bool          // a low chart without a vertical axis and a key, below a figure that has both
	more      string        // page with the table; "" shows the table here
}

// A stackLayer is one of the counts, with one number for each time of its stack.
type stackLayer struct {
	class, label string
	counts       []int
	url          string // list of what the newest count counts; "" for none
}

func (l stackLayer) last() int { return l.counts[len(l.counts)-1] }

func (l stackLayer) sum() (sum int) {
	for _, n := range l.counts {
		sum += n
	}
	return sum
}

// high returns the largest sum of the layers at any time.
func (c stackChart) high() (high int) {
	for i := range c.times {
		high = max(high, c.upTo(len(c.layers)-1, i))
	}
	return high
}

// drawable reports whether there is anything to draw: an area needs two times.
func (c stackChart) drawable() bool { return c.high() > 0 && (c.step > 0 || len(c.times) > 1) }

// role returns the role of the drawing: an image has no links.
func (c stackChart) role() string {
	if c.links != nil {
		return "group"
	}
	return "img"
}

// box returns the axes of the chart.
func (c stackChart) box() trend {
	box := trend{id: c.id, title: c.title, axis: niceAxis(0, float64(max(c.high(), 4)), 4), span: c.span, reach: c.reach()}
	if c.strip {
		box.axis = axis{0, float64(max(c.high(), 1)), float64(max(c.high(), 1))}
	}
	return box
}

// reach is the time in which the pointer selects an area's moment.
func (c stackChart) reach() time.Duration {
	if len(c.times) < 2 {
		return 0
	}
	return 3 * c.times[1].Sub(c.times[0])
}

// upTo returns the sum of the layers up to n at time i.
func (c stackChart) upTo(n, i int) (sum int) {
	for _, l := range c.layers[:n+1] {
		sum += l.counts[i]
	}
	return sum
}

// area returns the outline of the layers up to n, down to zero: what lies below is drawn over it.
func (c stackChart) area(box trend, n int) string {
	var b strings.Builder
	last := -1
	for i := range c.times {
		high := c.upTo(n, i)
		if i > 0 && i < len(c.times)-1 && high == last && high == c.upTo(n, i+1) {
			continue // in the middle of a level line
		}
		b.WriteString("ML"[min(i, 1):][:1] + strconv.Itoa(int(box.x(c.times[i]))) + " " + coord(box.y(float64(high))))
		last = high
	}
	return b.String() + "V" + strconv.Itoa(plotHigh) + "H0Z"
}

// barPath returns all bars of layer n as one path: a path for each bar would be most of the page.
func (c stackChart) barPath(box trend, n int) string {
	const gap = .12 // of a bar's width
	var b strings.Builder
	for i, at := range c.times {
		high, low := c.upTo(n, i), c.upTo(n, i)-c.layers[n].counts[i]
		if high == low {
			continue
		}
		from, to := box.x(later(at, c.span.from)), box.x(earlier(at.Add(c.step), c.span.to))
		top, foot := box.y(float64(high)), box.y(float64(low))
		// A single failure among thousands of calls is still visible: upper layers are drawn over lower ones.
		const least = 2
		if foot-top < least {
			top = min(top, plotHigh-least)
			foot = top + least
		}
		b.WriteString("M" + coord(from) + " " + coord(top) + "h" + coord((to-from)*(1-gap)) + "V" + coord(foot) + "H" +
			coord(from) + "Z")
	}
	return b.String()
}

// A stackMoment is the part of the plot where the pointer selects one time.
type stackMoment struct{ x, width, text, url string }

func (c stackChart) moments(ctx context.Context, box trend) []stackMoment {
	all := make([]stackMoment, len(c.times))
	if c.step > 0 {
		for i, at := range c.times {
			from, to := box.x(later(at, c.span.from)), box.x(earlier(at.Add(c.step), c.span.to))
			all[i] = stackMoment{x: coord(from), width: coord(to - from), text: c.text(ctx, i)}
			if c.links != nil {
				all[i].url = c.links[i]
			}
		}
		return all
	}
	for i, at := range c.times {
		box.readings = append(box.readings, reading{at: at, values: []float64{0}, text: c.text(ctx, i)})
	}
	for i, s := range box.strips() {
		all[i] = stackMoment{x: s.x, width: s.width, text: s.text}
	}
	return all
}

// text returns the time and its counts, in the order in which the layers lie on each other.
func (c stackChart) text(ctx context.Context, i int) string {
	text := exact(ctx, c.times[i])
	for _, l := range slices.Backward(c.layers) {
		if n := l.counts[i]; n > 0 {
			text += "\n" + l.label + ": " + num(ctx, n)
		}
	}
	return text
}

// rows returns the times of the table, at most 48 and the newest first.
func (c stackChart) rows() (rows []int) {
	const most = 48
	step := (len(c.times) + most - 1) / most
	for i := len(c.times) - 1; i >= 0; i -= step {
		rows = append(rows, i)
	}
	return rows
}
