package live

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"github.com/weft-hpc/weft/internal/record"
)

// WriteMetrics writes a snapshot in the text format of OpenMetrics 1.0, which Prometheus reads.
func WriteMetrics(out io.Writer, s *Snapshot) error {
	w := bufio.NewWriter(out)
	m := metrics{w}
	running := 0
	for i := range s.Ranks {
		if s.Ranks[i].State == "running" {
			running++
		}
	}
	m.family("weft_job", "info", "", "The job that this gorun runs.")
	m.sample("weft_job_info", labels("job", s.Job, "name", s.Name), 1)
	m.family("weft_ranks", "gauge", "", "Number of ranks of the job.")
	m.sample("weft_ranks", "", float64(len(s.Ranks)))
	m.family("weft_ranks_running", "gauge", "", "Number of ranks that have not ended.")
	m.sample("weft_ranks_running", "", float64(running))

	each := func(f func(r *Rank, l string)) {
		for i := range s.Ranks {
			if r := &s.Ranks[i]; r.Figures != nil {
				f(r, labels("rank", r.Name, "host", r.Host))
			}
		}
	}
	m.family("weft_elapsed_seconds", "gauge", "seconds", "Time since the rank's call of Init, or until its Finalize.")
	each(func(r *Rank, l string) { m.sample("weft_elapsed_seconds", l, r.Figures.Elapsed.Seconds()) })
	m.family("weft_messages_sent", "counter", "", "Messages that the rank has sent.")
	each(func(r *Rank, l string) { m.sample("weft_messages_sent_total", l, float64(r.Figures.Messages)) })
	m.family("weft_sent_bytes", "counter", "bytes", "Bytes of data in the messages that the rank has sent.")
	each(func(r *Rank, l string) { m.sample("weft_sent_bytes_total", l, float64(r.Figures.Bytes)) })
	flag := func(name, help string, is func(f *record.Figures) bool) {
		m.family(name, "gauge", "", "1 if the rank "+help)
		each(func(r *Rank, l string) {
			v := 0.0
			if is(r.Figures) {
				v = 1
			}
			m.sample(name, l, v)
		})
	}
	flag("weft_in_collective", "is in a collective.", func(f *record.Figures) bool { return f.Inside != nil })
	flag("weft_waiting", "waits in a call, for so long that it sleeps.", func(f *record.Figures) bool { return f.Waiting != nil })
	ops := func(f func(o *record.OpFigures, l string)) {
		each(func(r *Rank, l string) {
			for i := range r.Figures.Ops {
				o := &r.Figures.Ops[i]
				f(o, l+","+labels("call", o.Name))
			}
		})
	}
	m.family("weft_calls", "counter", "", "Calls of package comm.")
	ops(func(o *record.OpFigures, l string) { m.sample("weft_calls_total", l, float64(o.Calls)) })
	m.family("weft_call_bytes", "counter", "bytes", "Bytes of the buffers of the calls.")
	ops(func(o *record.OpFigures, l string) { m.sample("weft_call_bytes_total", l, float64(o.Bytes)) })
	m.family("weft_call_seconds", "counter", "seconds", "Time in the calls; of nonblocking collectives, from their start to their end.")
	ops(func(o *record.OpFigures, l string) { m.sample("weft_call_seconds_total", l, o.Time.Seconds()) })
	fmt.Fprint(w, "# EOF\n") // Flush returns the error
	return w.Flush()
}

type metrics struct{ w *bufio.Writer }

func (m metrics) family(name, kind, unit, help string) {
	fmt.Fprintf(m.w, "# TYPE %s %s\n", name, kind)
	if unit != "" {
		fmt.Fprintf(m.w, "# UNIT %s %s\n", name, unit)
	}
	fmt.Fprintf(m.w, "# HELP %s %s\n", name, help)
}

func (m metrics) sample(name, labels string, v float64) {
	if labels != "" {
		labels = "{" + labels + "}"
	}
	fmt.Fprintf(m.w, "%s%s %v\n", name, labels, v)
}

// labels returns names and values in the form of the format.
func labels(pairs ...string) string {
	escape := strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
	var list []string
	for i := 0; i < len(pairs); i += 2 {
		list = append(list, fmt.Sprintf(`%s="%s"`, pairs[i], escape.Replace(pairs[i+1])))
	}
	return strings.Join(list, ",")
}
