"""Run the integer part of a kernel's PTX for all threads of a program at once; every address is checked."""
import re, numpy as np
U64=np.uint64
def parse(ptx):
    body=ptx[ptx.index("{\n",ptx.index(".entry")):]
    code=[];labels={}
    for line in body.split("\n"):
        line=line.split("//")[0].strip()
        if line.startswith("{") : line=line[1:].strip()
        if not line or line.startswith(".") or line=="}" : continue
        m=re.match(r"^(\$\w+):(.*)$",line)
        if m: labels[m[1]]=len(code); line=m[2].strip()
        if not line: continue
        for part in line.split(";"):
            part=part.strip().strip("}").strip()
            if not part or part.startswith(".") or part==")" : continue
            m=re.match(r"^(?:@(!?)(%\w+)\s+)?(\S+)\s*(.*)$",part)
            ops=[]
            s=m[4]; depth=0; cur=""
            for ch in s:
                if ch in "{[": depth+=1
                if ch in "}]": depth-=1
                if ch=="," and depth==0: ops.append(cur.strip()); cur=""
                else: cur+=ch
            if cur.strip(): ops.append(cur.strip())
            code.append((m[1]=="!",m[2],m[3],ops,part))
    return code,labels
def width(op):
    m=re.search(r"\.(?:[subf]|bf)(8|16|32|64)(?!.*\.(?:[subf])(8|16|32|64))",op); 
    return int(m[1])
MASK={8:0xff,16:0xffff,32:0xffffffff,64:0xffffffffffffffff}
def signed(x,w):
    if w==64: return x.astype(np.int64)
    if w==32: return (x&U64(MASK[32])).astype(np.uint32).astype(np.int32).astype(np.int64)
    return (x&U64(MASK[16])).astype(np.uint16).astype(np.int16).astype(np.int64)
class Bad(Exception): pass
def run(code,labels,params,program,threads,check,shared):
    R={}; T=threads; stats={"unknown":0,"checked":0}
    tid=np.arange(T,dtype=np.uint64)
    def const(v): return np.full(T,v&MASK[64],dtype=np.uint64)
    def get(o):
        o=o.strip()
        if o in R: return R[o]
        if o=="%tid.x": return tid
        if o=="%ctaid.x": return const(program)
        if o.startswith("%"): return None
        if o.startswith("global_smem"):
            return const(int(o.split("+")[1]) if "+" in o else 0)
        if re.match(r"^-?\d+$",o): return const(int(o))
        if re.match(r"^0x[0-9a-fA-F]+$",o): return const(int(o,16))
        if o.startswith("0f"): return None
        return None
    def addr(o):
        m=re.match(r"^\[\s*(\S+?)\s*(?:\+\s*(-?\d+))?\s*\]$",o)
        a=get(m[1]); 
        return None if a is None else a+const(int(m[2] or 0))
    pc=0; steps=0
    while pc<len(code):
        neg,pred,op,ops,text=code[pc]; pc+=1; steps+=1
        if steps>400000: raise Bad("too long")
        p=np.ones(T,bool)
        if pred:
            v=R.get(pred)
            if v is None:
                p=None
            else:
                p=v.astype(bool); p=~p if neg else p
        if op=="ret": return stats
        if op.startswith("bra"):
            if pred:
                if p is None: continue
                if p.all(): pc=labels[ops[0]]
                elif p.any(): raise Bad("divergent "+text)
            else: pc=labels[ops[0]]
            continue
        kind=op.split(".")[0]
        if op.startswith(("ld.param",)):
            v=params[int(re.search(r"param_(\d+)",ops[1])[1])]; R[ops[0]]=None if v is None else const(v); continue
        if op.startswith(("ld.global","st.global","atom.global","red.global")) or kind=="cp" and ".shared.global" in op or op.startswith("atom"):
            if kind=="cp":
                a=addr(ops[1]); n=int(ops[2],16) if ops[2].startswith("0x") else int(ops[2]); size=get(ops[3]) if len(ops)>3 else const(n)
                if a is None or p is None or size is None: stats["unknown"]+=1
                else:
                    live=p&(size>0); stats["checked"]+=int(live.sum()); check(a[live],n,text,"load")
                continue
            o=next(x for x in ops if x.startswith("["))
            a=addr(o); w=width(op)//8; n=w*(int(re.search(r"\.v(\d)",op)[1]) if re.search(r"\.v(\d)",op) else 1)
            if a is None or p is None: stats["unknown"]+=1
            else: stats["checked"]+=int(p.sum()); check(a[p],n,text,kind)
            if kind in("ld","atom"):
                for d in re.findall(r"%\w+",ops[0]): R[d]=None
            continue
        if op.startswith(("st.shared","ld.shared")):
            o=next(x for x in ops if x.startswith("["))
            a=addr(o); w=width(op)//8*(int(re.search(r"\.v(\d)",op)[1]) if ".v" in op else 1)
            if a is None or p is None: stats["unknown"]+=1
            elif p.any() and ((a[p]+U64(w))>U64(shared)).any(): raise Bad(f"shared {text} {a[p].max()} of {shared}")
            if kind=="ld":
                for d in re.findall(r"%\w+",ops[0]): R[d]=None
            continue
        if not ops or not ops[0].lstrip("{").startswith("%"): continue
        d=ops[0]; a=[get(x) for x in ops[1:]]
        def put(v):
            if pred and v is not None and p is not None and not p.all():
                old=R.get(d); v=None if old is None else np.where(p,v,old)
            R[d]=v
        known=all(x is not None for x in a)
        try:
            w=width(op) if kind not in("mov","and","or","xor","not") or re.search(r"\.[bus]\d",op) else 1
        except TypeError: w=1
        sg=".s" in op
        if kind in("mov",) :
            if op=="mov.pred": put(a[0]); continue
            if "{" in ops[0]:
                ds=re.findall(r"%\w+",ops[0])
                if a[0] is None:
                    for x in ds: R[x]=None
                else:
                    half=w//len(ds)
                    for k,x in enumerate(ds): R[x]=(a[0]>>U64(half*k))&U64(MASK[half])
                continue
            if "{" in ops[1]:
                xs=[get(x) for x in re.findall(r"[%\w.]+",ops[1])]
                if any(x is None for x in xs): put(None); continue
                half=w//len(xs); v=const(0)
                for k,x in enumerate(xs): v=v|((x&U64(MASK[half]))<<U64(half*k))
                put(v); continue
            put(a[0]); continue
        if not known and kind=="selp" and a[2] is not None:
            x,y,c=a; c=c.astype(bool)
            if c.all(): put(x)
            elif (~c).all(): put(y)
            else: put(None)
            continue
        if not known and kind in("and",) and op=="and.pred":
            z=[x for x in a if x is not None]
            put(const(0) if z and not z[0].any() else None); continue
        if not known or re.search(r"\.(f16|f32|bf16|f64|f16x2|bf16x2)",op) and kind not in("selp","mov"):
            put(None); 
            for x in re.findall(r"%\w+",d): R[x]=None if "{" in d else R.get(x)
            continue
        m_=U64(MASK.get(w,1)) if w in MASK else U64(1)
        S=lambda x:signed(x,w)
        b=lambda x:x.astype(np.int64).view(np.uint64)
        with np.errstate(all="ignore"):
            if kind=="add": v=a[0]+a[1]
            elif kind=="sub": v=a[0]-a[1]
            elif kind=="neg": v=U64(0)-a[0]
            elif kind=="mul":
                if ".wide" in op: v=b(signed(a[0],w)*signed(a[1],w)) if sg else (a[0]&m_)*(a[1]&m_); m_=U64(MASK[64])
                elif ".lo" in op: v=a[0]*a[1]
                elif ".hi" in op: v=b((signed(a[0],w)*signed(a[1],w))>>w) if sg else ((a[0]&m_)*(a[1]&m_))>>U64(w)
                else: raise Bad(text)
            elif kind=="mad":
                if ".wide" in op: v=(b(signed(a[0],w)*signed(a[1],w)) if sg else (a[0]&m_)*(a[1]&m_))+a[2]; m_=U64(MASK[64])
                else: v=a[0]*a[1]+a[2]
            elif kind=="shl": v=np.where(a[1]<U64(w),a[0]<<np.minimum(a[1],U64(63)),U64(0))
            elif kind=="shr": 
                v=b(S(a[0])>>np.minimum(a[1],U64(w-1)).astype(np.int64)) if sg else (a[0]&m_)>>a[1]
            elif kind=="bfe":
                v=((a[0]&m_)>>a[1])&((U64(1)<<a[2])-U64(1))
            elif kind in("and","or","xor"):
                v={"and":np.bitwise_and,"or":np.bitwise_or,"xor":np.bitwise_xor}[kind](a[0],a[1])
                if op.endswith(".pred"): m_=U64(1)
            elif kind=="abs": v=b(np.abs(S(a[0])))
            elif kind=="not": v=~a[0]; m_=U64(1) if op.endswith("pred") else m_
            elif kind in("min","max"):
                f=np.minimum if kind=="min" else np.maximum
                v=b(f(S(a[0]),S(a[1]))) if sg else f(a[0]&m_,a[1]&m_)
                if ".relu" in op: v=b(np.maximum(signed(v,w),0))
            elif kind in("div","rem"):
                if sg:
                    x,y=S(a[0]),S(a[1]); q=np.trunc(x/np.where(y==0,1,y)).astype(np.int64) if w==32 else x//y
                    v=b(q) if kind=="div" else b(x-q*y)
                else:
                    x,y=a[0]&m_,a[1]&m_; v=x//y if kind=="div" else x%y
            elif kind=="setp":
                c=op.split(".")[1]
                x,y=(S(a[0]),S(a[1])) if sg else (a[0]&m_,a[1]&m_)
                v={"lt":x<y,"le":x<=y,"gt":x>y,"ge":x>=y,"eq":x==y,"ne":x!=y,"ltu":x<y}[c].astype(np.uint64); m_=U64(1)
            elif kind=="selp": v=np.where(a[2].astype(bool),a[0],a[1])
            elif kind=="cvt":
                t,f=re.search(r"cvt(?:\.\w+)*?\.([su]\d+)\.([su]\d+)$",op).groups()
                fw,tw=int(f[1:]),int(t[1:])
                v=b(signed(a[0],fw)) if f[0]=="s" else a[0]&U64(MASK[fw]); m_=U64(MASK[tw])
            else: put(None); stats.setdefault("odd",set()).add(op); continue
        put(v&m_)
    return stats
