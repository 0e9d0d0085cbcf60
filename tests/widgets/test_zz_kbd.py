def test_k(open_notebook):
    lab=open_notebook(["from flashlab.widgets.roofline import Roofline","w = Roofline('H200', n=4096); w"])
    p=lab.page
    s=p.get_by_role("slider",name="head_dim")
    p.evaluate("""()=>{window.__log=[];
      for (const m of ['preventDefault','stopPropagation','stopImmediatePropagation']) { const o=Event.prototype[m]; Event.prototype[m]=function(){ if(this.type.startsWith('key')) __log.push(m+' '+this.type+' '+new Error().stack.slice(0,700)); return o.apply(this,arguments)} } }""")
    s.focus(); s.press("ArrowLeft"); p.wait_for_timeout(500)
    for l in p.evaluate("__log"): print(l)
