package trace

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"
)

// chrome writes a trace in the Trace Event Format of Chrome, which is JSON: an object with the list of
// events. Times there are in microseconds.
type chrome struct {
	out    *output
	began  bool // an event is written
	pid    int
	tracks map[int]bool // by number of a thread: its name is written
	texts  map[string][]byte
	buf    []byte
}

// The numbers of the threads of a rank. Those of the tracks for calls follow.
const (
	chromeMessages = 0
	chromeCalls    = 1
)

func (c *chrome) begin(at time.Duration, wall time.Time) {
	c.out.write([]byte(`{"displayTimeUnit":"ns","otherData":{"clock":"ts 0 is `))
	c.out.write([]byte(wall.Add(-at).UTC().Format(time.RFC3339Nano)))
	c.out.write([]byte(`"},"traceEvents":[`))
}

// open begins an event, up to its first further key.
func (c *chrome) open(kind byte, tid int, at time.Duration, name string) {
	c.buf = c.buf[:0]
	if c.began {
		c.buf = append(c.buf, ',')
	}
	c.began = true
	c.buf = append(append(append(c.buf, "\n{\"ph\":\""...), kind), `","name":`...)
	c.buf = append(c.buf, c.text(name)...)
	c.buf = strconv.AppendInt(append(c.buf, `,"pid":`...), int64(c.pid), 10)
	c.buf = strconv.AppendInt(append(c.buf, `,"tid":`...), int64(tid), 10)
	c.time("ts", at)
}

func (c *chrome) time(key string, t time.Duration) {
	c.buf = append(append(append(c.buf, `,"`...), key...), `":`...)
	c.buf = strconv.AppendInt(c.buf, int64(t/1000), 10)
	c.buf = append(c.buf, fmt.Sprintf(".%03d", t%1000)...)
}

func (c *chrome) close() {
	c.buf = append(c.buf, '}')
	c.out.write(c.buf)
}

// text returns a text in JSON. Most texts come often.
func (c *chrome) text(s string) []byte {
	b, ok := c.texts[s]
	if !ok {
		b, _ = json.Marshal(s) // a string always fits
		c.texts[s] = b
	}
	return b
}

func (c *chrome) args(list []arg) {
	c.buf = append(c.buf, `,"args":{`...)
	for i := range list {
		if i > 0 {
			c.buf = append(c.buf, ',')
		}
		c.buf = append(append(c.buf, c.text(list[i].name)...), ':')
		if list[i].text != "" {
			c.buf = append(c.buf, c.text(list[i].text)...)
		} else {
			c.buf = strconv.AppendInt(c.buf, list[i].num, 10)
		}
	}
	c.buf = append(c.buf, '}')
}

func (c *chrome) rank(r *Rank) {
	c.pid, c.tracks, c.texts = r.Number, make(map[int]bool), make(map[string][]byte)
	c.meta(0, "process_name", arg{name: "name", text: fmt.Sprintf("%s (%s)", r.Name, r.Host)})
	c.meta(0, "process_sort_index", arg{name: "sort_index", num: int64(r.Number)})
	c.thread(chromeMessages, "messages", maxTracks+1)
}

func (c *chrome) meta(tid int, name string, a arg) {
	c.open('M', tid, 0, name)
	c.args([]arg{a})
	c.close()
}

// thread names a thread of the rank, once. order is its position in the viewer.
func (c *chrome) thread(tid int, name string, order int64) {
	if !c.tracks[tid] {
		c.tracks[tid] = true
		c.meta(tid, "thread_name", arg{name: "name", text: name})
		c.meta(tid, "thread_sort_index", arg{name: "sort_index", num: order})
	}
}

func (c *chrome) call(t track, start, end time.Duration, name string, args []arg, within []message) {
	tid, text := chromeCalls+int(t), "calls"
	if t > 0 {
		text = fmt.Sprintf("calls %d", t+1)
	}
	c.thread(tid, text, int64(t))
	c.slice(tid, start, end, name, args)
	for i := range within {
		c.putMessage(tid, &within[i])
	}
}

func (c *chrome) slice(tid int, start, end time.Duration, name string, args []arg) {
	c.open('X', tid, start, name)
	c.time("dur", end-start)
	c.args(args)
	c.close()
}

func (c *chrome) message(m *message) { c.putMessage(chromeMessages, m) }

// putMessage writes a message on a thread: a slice, and one end of an arrow.
func (c *chrome) putMessage(tid int, m *message) {
	c.slice(tid, m.at, m.at, m.name(), m.args)
	kind := byte('f')
	if m.sent {
		kind = 's'
	}
	c.open(kind, tid, m.at, "message")
	c.buf = append(c.buf, `,"cat":"message","bp":"e","id":"`...)
	c.buf = append(strconv.AppendUint(c.buf, m.flow, 16), '"')
	c.close()
}

func (c *chrome) note(at time.Duration, text string, args []arg) {
	c.open('i', chromeMessages, at, text)
	c.args(args)
	c.close()
}

func (c *chrome) counter(n counter, at time.Duration, value int64) {
	c.open('C', 0, at, counterNames[n])
	c.args([]arg{{name: "bytes/s", num: value}})
	c.close()
}

func (c *chrome) end() { c.out.write([]byte("\n]}\n")) }
